"""The stages: each is `python -m training.stages.<name> REQUEST_URI`."""
