"""Many texts: files in, a Parquet dataset out, resumable; on one machine or on Ray."""
