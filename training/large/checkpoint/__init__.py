"""Checkpoints that several processes write together."""
