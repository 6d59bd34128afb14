"""The tables of a snapshot as one frame: joins, derived columns, windows."""
