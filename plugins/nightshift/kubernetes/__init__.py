"""Alias of an earlier release: `nightshift.execution.kubernetes`."""
