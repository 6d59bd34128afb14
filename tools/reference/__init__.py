"""Writes docs/reference/ from the source: keys of the YAML and of placement.yaml, environment variables, error codes, commands."""
