"""What a YAML can name: families, metrics, gates and kinds of sources."""
