"""Trains the models of the paper's experiments: ``python -m reproduction --help``. Not in the wheel."""
