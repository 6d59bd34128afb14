"""Example of a user's model package, to be listed in NIGHTSHIFT_MODEL_PACKAGES."""
