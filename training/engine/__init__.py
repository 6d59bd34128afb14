"""The training loop and its parts, one file per concern."""
