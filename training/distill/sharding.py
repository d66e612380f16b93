"""A teacher and a student whose weights several processes share (FSDP2), and other wrapped models."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers import PreTrainedModel


def shard(model: PreTrainedModel) -> None:
    """Divide a model's weights among all processes; a layer is whole on a device only while it runs."""
    for module in model.modules():
        if type(module).__name__ in (model._no_split_modules or ()):
            fully_shard(module)
    fully_shard(model, reshard_after_forward=True)


def is_sharded(model: Any) -> bool:
    """Say whether all processes have to run a model at the same time."""
    return isinstance(model, FSDPModule)


def run_in_forward(
    wrapped: Any, model: PreTrainedModel, function: Callable[..., torch.Tensor], *args: torch.Tensor, **kwargs: Any
) -> torch.Tensor:
    """Call a function that runs parts of a model, as the model's forward.

    What gathers its weights, or averages its gradients over processes, does so for its forward alone.

    Args:
        wrapped: the model, or what has wrapped it.
        model: of transformers.
        function: what is called.
        args: of the function.
        kwargs: of the function.
    """
    if wrapped is model and not is_sharded(model):
        return function(*args, **kwargs)
    forward = model.forward

    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        model.forward = forward  # type: ignore[method-assign]
        with warnings.catch_warnings():
            # nobody changes what a model returns in place
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
            return function(*args, **kwargs)

    model.forward = run  # type: ignore[method-assign]
    return wrapped(*args, **kwargs)
