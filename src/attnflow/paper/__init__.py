"""Experiments: questions that the paper leaves open or that its claims raise, each a file that measures and reports."""
