"""How well models do: the scores of benchmarks, times and memory."""
