"""Configurations and the order language; nothing here imports torch or our own models."""
