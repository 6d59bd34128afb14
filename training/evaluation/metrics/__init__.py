"""The metrics, a module for each group that shares its arithmetic."""
