"""Sublayers, stacks and the models built from them."""
