"""What benches do with models of any kind: place, count, train and freeze them, and let them write."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from sublayers.configuration.order import Order
from sublayers.training.metrics.timing import Call, Task

# names of implementations; the order follows where there are several models of one
OURS, X_TRANSFORMERS = "sublayers", "x-transformers"
MISSING = 'x-transformers is not installed, pip install "sublayers[bench]" adds it to the comparison.'

# the calls of each model, by their tasks
Calls = dict[str, dict[str, Call]]


def sizes(args: Any, **others: Any) -> dict[str, Any]:
    """Give the sizes that flags name the names that they have in configurations, before others.

    A feed-forward sublayer is four times as wide as the states.
    """
    width = {"hidden_size": args.hidden_size, "intermediate_size": 4 * args.hidden_size}
    return {"vocab_size": args.vocab_size, **width, "num_attention_heads": args.heads, **others}


def draw_rows(lengths: list[int], padding: int, args: Any) -> tuple[Tensor, Tensor]:
    """Draw random tokens in rows of given lengths, padded on the right: these and their mask, (rows, longest)."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, args.vocab_size, mask.shape).masked_fill(~mask, padding)
    return ids.to(args.device), mask.to(args.device)


def place(models: dict[str, Any], args: Any) -> dict[str, Any]:
    """Move models to the device, and into the precision, that the flags name."""
    return {name: model.to(args.device, getattr(torch, args.dtype)) for name, model in models.items()}


def freeze(models: dict[str, Any]) -> None:
    """End the training of models."""
    for model in models.values():
        model.eval().requires_grad_(False)


def parameters(models: dict[str, Any]) -> dict[str, int]:
    """Count the numbers that models learn."""
    return {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}


def gigabytes(models: dict[str, Any], new_tokens: int) -> dict[str, float]:
    """Count what generating some tokens reads of a model's weights."""
    return {name: new_tokens * sum(p.nbytes for p in model.parameters()) / 1e9 for name, model in models.items()}


def gigaflops(call: Call) -> float:
    """Count the GFLOP of the matrix products that a call runs."""
    # the counter sees neither attention in a kernel nor products that oneDNN runs
    onednn = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.set_flags(False)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    torch.backends.mkldnn.set_flags(onednn)
    return counter.get_total_flops() / 1e9


def counted(name: str, calls: dict[str, Call]) -> Task:
    """Make a task whose work is what `gigaflops` counts."""
    return Task(name, "GFLOP", calls, {each: gigaflops(call) for each, call in calls.items()})


def training(name: str, models: dict[str, Any], losses: dict[str, Call]) -> Task:
    """Make the task of training steps, see `train_steps`, each of which counts as three forward passes."""
    # models that train compute more than those that do not
    steps = train_steps(models, losses)
    return Task(name, "GFLOP", steps, {each: 3 * gigaflops(call) for each, call in losses.items()})


def of_task(calls: Calls, task: str) -> dict[str, Call]:
    """Choose the call of a task of each model that has one."""
    return {name: by_task[task] for name, by_task in calls.items() if task in by_task}


def train_steps(models: dict[str, Any], losses: dict[str, Call]) -> dict[str, Call]:
    """Make training steps of models, each with an optimizer of its own, from calls that compute the loss or have it.

    Only the steps keep the optimizers and their memory.
    """

    def step(optimizer: torch.optim.Optimizer, call: Call) -> None:
        output = call()
        # a language model's call may return the loss by itself
        (output if isinstance(output, Tensor) else output.loss).backward()
        optimizer.step()
        optimizer.zero_grad()

    optimizers = {name: torch.optim.AdamW(models[name].train().parameters(), fused=True) for name in losses}
    return {name: partial(step, optimizers[name], call) for name, call in losses.items()}


def decode(model: Any, prompt: Tensor, new_tokens: int) -> Tensor:
    """Let a language model go on after prompts, (batch, length): greedily, in tokens (batch, length or less)."""
    if isinstance(model, PreTrainedModel):
        mask = torch.ones_like(prompt)
        return model.generate(prompt, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False)  # type: ignore[operator]
    return model.generate(prompt, new_tokens, temperature=0.0)


def decoding(name: str, models: dict[str, Any], prompt: Tensor, new_tokens: int) -> Task:
    """Make the task of `decode`."""
    calls: dict[str, Call] = {each: partial(decode, model, prompt, new_tokens) for each, model in models.items()}
    return Task(name, "GB", calls, gigabytes(models, new_tokens))


def x_transformer(order: str, args: Any, decoder: dict[str, Any], **options: Any) -> nn.Module:
    """Build the network of x-transformers that is nearest to our language models.

    Args:
        order: of its sublayers.
        args: the sizes.
        decoder: more options of the `Decoder`.
        options: of what is around it.
    """
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=args.hidden_size,
        depth=args.layers,
        heads=args.heads,
        attn_dim_head=args.hidden_size // args.heads,
        custom_layers=tuple(Order(order).letters.replace("s", "a")),
        **decoder,
    )
    return TransformerWrapper(num_tokens=args.vocab_size, attn_layers=layers, tie_embedding=True, **options)
