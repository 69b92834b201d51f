"""Corpus jobs: explain many texts, resumably, into a Parquet dataset, on one machine or on Ray.

explain_corpus   explains every text of a file or folder
export_corpus    makes one CSV of the results
"""

from attnflow.corpus.corpus_job import explain_corpus as explain_corpus
from attnflow.corpus.export import export_corpus as export_corpus

__all__ = ["explain_corpus", "export_corpus"]
