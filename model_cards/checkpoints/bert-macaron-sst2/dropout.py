"""Dropout at a place of the model, whose rate is the place's own or that of the whole model."""

from torch import nn


def dropout(config, place: str) -> nn.Dropout:
    """Make the dropout of the place that a field names; where the field is None, its rate is `config.dropout`."""
    share = getattr(config, place)
    return nn.Dropout(config.dropout if share is None else share)
