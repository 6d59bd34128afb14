"""The keys of the YAML, a module for each section."""
