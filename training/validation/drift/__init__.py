"""How far columns have moved, within a snapshot and between two."""
