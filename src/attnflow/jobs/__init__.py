"""Resumable jobs: shards, manifest, lock and resuming; worker processes and Ray workers that may die; progress."""
