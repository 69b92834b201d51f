"""Benchmarks, and writers of documentation pages: ``python -m benchmarks.flow --help``. Not in the wheel."""
