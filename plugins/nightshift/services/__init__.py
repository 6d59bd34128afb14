"""Alias of an earlier release: `devstack`."""
