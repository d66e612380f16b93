"""Speed and memory beside other implementations, one module per kind of model."""
