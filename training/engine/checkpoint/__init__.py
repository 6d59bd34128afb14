"""Checkpoints: their format, writer and reader."""
