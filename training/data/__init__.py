"""What becomes of data before training: snapshots, validation, joins, transforms, shards, the loader."""
