"""The commands: training, evaluation, benchmarks and what they need."""
