"""Reading of texts from .txt, .csv, .tsv and .jsonl, compressed or not, and from .parquet and .arrow."""
