"""Instants, windows and partitions of a run."""
