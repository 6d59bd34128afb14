"""Kinds of files that a source may have."""
