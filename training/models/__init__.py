"""Families of models, a folder each: the spec imports their descriptors, so nothing heavy is imported here."""
