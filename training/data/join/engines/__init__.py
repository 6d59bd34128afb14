"""What joins a snapshot: the interface, and DuckDB."""
