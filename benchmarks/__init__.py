"""Benchmarks, and what writes pages of the documentation: ``python -m benchmarks.flow --help``. Not in the wheel."""
