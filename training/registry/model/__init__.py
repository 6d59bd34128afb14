"""The files and the code of a registered model."""
