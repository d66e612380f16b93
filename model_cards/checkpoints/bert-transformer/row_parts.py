"""Large batches on a CPU: their rows run in parts, the states of which stay in its cache."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn

from .plan import Plan

# bytes of the widest states of a part; systems also take memory of larger ones back after each use
PART_BYTES = 16 * 2**20


def has_hooks(module: nn.Module) -> bool:
    """Say whether somebody hears what a module computes, apart from transformers when it records."""
    hooks = chain(module._forward_hooks.values(), module._forward_pre_hooks.values())
    return any(not hook.__module__.startswith("transformers.") for hook in hooks)


def divide_rows(body: Any, tokens: torch.Tensor, attention_mask: Any, plan: Plan) -> list[slice]:
    """Divide a batch of tokens (batch, length, ...) into parts for a body; none where all rows run together."""
    batch, length = tokens.shape[:2]
    # other masks are not cut by rows
    has_rows = attention_mask is None or isinstance(attention_mask, torch.Tensor)
    if plan.is_whole or not has_rows or torch.is_grad_enabled() or tokens.device.type != "cpu":
        return []
    width = body.config.intermediate_size
    widest = max(width) if isinstance(width, list) else width
    # the widest states of a token have 32 bits
    rows = max(1, PART_BYTES // (4 * widest * max(1, length)))
    # hooks expect to see a batch once
    if rows >= batch or any(map(has_hooks, body.modules())):
        return []
    return [slice(start, start + rows) for start in range(0, batch, rows)]


def run_in_parts(
    forward: Callable[..., Any], parts: Sequence[slice], plan: Plan, inputs: Mapping[str, Any], **kwargs
) -> Any:
    """Run a body for each part, and join its outputs, as if all rows had run together.

    Args:
        forward: of the body; takes the inputs and a plan.
        parts: of the rows.
        plan: of all rows.
        inputs: of all rows, (batch or 1, ...) each, or None.
        kwargs: for attention kernels.
    """
    batch, found = plan.batch, []

    def only(tensor: Any, rows: slice) -> Any:
        return tensor[rows] if isinstance(tensor, torch.Tensor) and len(tensor) == batch else tensor

    for rows in parts:
        given = {name: only(tensor, rows) for name, tensor in inputs.items()}
        tokens = given["input_ids"] if given["inputs_embeds"] is None else given["inputs_embeds"]
        part = Plan.of(tokens, given["attention_mask"], only(plan.read, rows), takes_mean=plan.takes_mean)
        found.append(forward(**given, plan=part, **kwargs))
    joined = {name: torch.cat([output[name] for output in found]) for name in found[0]}
    return type(found[0])(**joined)
