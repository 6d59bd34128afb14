"""Which rows are for training, validation and test."""
