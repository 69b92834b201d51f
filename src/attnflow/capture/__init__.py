"""What attention did in a forward pass, checked against the model without hooks."""
