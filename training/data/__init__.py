"""Where data comes from and what becomes of it before training: sources, snapshots, joins, transforms, shards, the loader."""
