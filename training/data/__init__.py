"""What models are trained and evaluated on: reading, tokenizing and batching it."""
