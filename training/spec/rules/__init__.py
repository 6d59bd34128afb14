"""Rules across keys, each for one subject."""
