"""Work that survives: shards, manifest, lock, resuming; processes and Ray workers that may die; progress."""
