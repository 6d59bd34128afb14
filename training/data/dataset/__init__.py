"""What prepare makes: the frame in parts, shards, and their readers, down to the loader of a training."""
