"""Weights of other implementations, one module per source."""
