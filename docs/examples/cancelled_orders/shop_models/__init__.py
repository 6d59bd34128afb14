"""Models of one's own: the package that NIGHTSHIFT_MODEL_PACKAGES names."""
