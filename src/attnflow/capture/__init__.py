"""Capture of attention in a forward pass, checked against the model without hooks."""
