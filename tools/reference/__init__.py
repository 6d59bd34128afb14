"""Writes docs/reference/ from the source: keys of the YAML, environment variables, error codes, commands."""
