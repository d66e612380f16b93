"""Dropout, of the share that a configuration has for its place or for all."""

from torch import nn


def dropout(config, place: str) -> nn.Dropout:
    """Make the dropout of a place, by the name of its field; None there means that of all, `config.dropout`."""
    share = getattr(config, place)
    return nn.Dropout(config.dropout if share is None else share)
