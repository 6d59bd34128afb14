"""What a run may see of its sources, as immutable files."""
