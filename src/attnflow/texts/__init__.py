"""Texts in files: .txt, .csv, .tsv and .jsonl, packed or not, .parquet and .arrow; the one reader of them all."""
