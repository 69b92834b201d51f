"""Benchmarks, as commands: `attnflow bench …`."""
