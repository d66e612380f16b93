"""How the benchmarks score."""
