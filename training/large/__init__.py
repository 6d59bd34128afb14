"""Models that one process cannot hold or train: what a training of whole models on healthy, equal machines does not import."""
