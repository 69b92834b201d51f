"""Resumable jobs: shards, manifest, lock and resuming; Ray workers that may die; progress."""
