"""Distillation: a student in another order of sublayers learns what a trained encoder answers."""
