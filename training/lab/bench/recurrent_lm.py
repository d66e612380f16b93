"""What `sublayers bench lm --memory` measures: PAR Transformer-XL in several orders beside x-transformers."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from sublayers.configuration.configuration_par_transformer_xl import PARTransformerXLConfig
from sublayers.configuration.order import interleaved, par
from sublayers.modeling.modeling_par_transformer_xl import PARTransformerXLForCausalLM
from sublayers.training.flags import flag, number
from sublayers.training.lab.bench import contenders
from sublayers.training.lab.bench.contenders import MISSING, OURS, X_TRANSFORMERS, Calls
from sublayers.training.lab.bench.flags import BenchFlags, size
from sublayers.training.metrics.timing import Call, Comparison, Task

REMARK = (
    "Ratios are to the first order and to x-transformers in the same order, which has T5's distances: no map of "
    "distances, and a number for each of 32 kinds of them and each head."
)
ORDERS = "interleaved and PAR's"


@dataclass(kw_only=True)
class Flags(BenchFlags):
    """Flags of `sublayers bench lm --memory`."""

    layers: int = size("layers", 8)
    hidden_size: int = size("hidden_size", 512)
    heads: int = size("heads", 8)
    # half of the paper's base model, whose adaptive softmax scores 20,000 columns
    vocab_size: int = size("vocab_size", 10000)
    batch_size: int = size("batch_size", 4)
    length: int = size("length", 64)
    prompt_length: int = size("prompt_length", 640)
    new_tokens: int = size("new_tokens", 16)
    repeats: int = size("repeats", 5)
    memory: bool = flag("chooses these models", True)
    memory_length: int = number("tokens that are remembered before a segment", 640)
    clamp_length: int = number("in scoring and generation, larger distances are this", 400)
    train_length: int = number("tokens of segment and memory in another train step", 192)
    decode_batch_sizes: list[int] = number("texts that are decoded", [1])
    score_batch_sizes: list[int] = number("texts that are scored", [1, 4])


def default_orders(args: Flags) -> list[str]:
    """The interleaved order, and PAR's of as many sublayers."""
    return [interleaved(args.layers), par(2 * args.layers, 5)]


def language_models(args: Flags) -> dict[str, Any]:
    """Build PAR Transformer-XL in each order and, where it is installed, x-transformers in the same orders.

    All have the same sizes, one matrix for embedding and output, and no dropout.
    """
    torch.manual_seed(0)
    models: dict[str, Any] = {}
    for order in args.orders:
        options = contenders.sizes(args, adaptive_cutoffs=None, dropout=0.0, activation_dropout=0.0)
        config = PARTransformerXLConfig(sublayer_order=order, **options)
        models[f"{OURS} {order}"] = PARTransformerXLForCausalLM(config)
    if find_spec("x_transformers"):
        from x_transformers import XLAutoregressiveWrapper

        decoder = {"rel_pos_bias": True, "ff_custom_activation": nn.ReLU()}
        lengths = {"max_seq_len": args.length, "max_mem_len": args.memory_length}
        for order in args.orders:
            body = contenders.x_transformer(order, args, decoder, **lengths)
            models[f"{X_TRANSFORMERS} {order}"] = XLAutoregressiveWrapper(body)
    return contenders.place(models, args)


def remember(model: Any, length: int, clamp_length: int | None) -> None:
    """Set how many tokens a model remembers and, for ours, the distance at which larger ones are clamped."""
    if isinstance(model, PARTransformerXLForCausalLM):
        model.config.memory_length, model.config.clamp_length = length, clamp_length
    else:
        model.net.max_mem_len = length


def our_calls(model: Any, past: Tensor, ids: Tensor) -> dict[str, Call]:
    """Make what our model has to call on the tokens (batch, length + 1) that follow a past (batch, remembered)."""
    segment, labels = ids[:, :-1], ids[:, 1:]
    memory = model(past, memory=model.empty_memory(len(past)), logits_to_keep=1).memory
    # the cache keeps its length, however often it is used
    cache = model(past, use_cache=True, logits_to_keep=1).cache
    return {
        "memory": lambda: memory,
        "loss": lambda: model(segment, memory=memory, shift_labels=labels).loss,
        "score with memory": lambda: model(segment, memory=memory).logits,
        "score with cache": lambda: model(segment, cache=cache).logits,
    }


def x_transformers_calls(model: Any, past: Tensor, ids: Tensor) -> dict[str, Call]:
    """Make what a model of x-transformers has to call; its cache cannot slide over a long text."""
    segment = ids[:, :-1]
    _, memory = model.net(past, return_mems=True)
    model.max_seq_len = segment.shape[1]
    return {
        "memory": lambda: memory,
        "loss": lambda: model(ids, mems=memory),
        "score with memory": lambda: model.net(segment, mems=memory, return_mems=True)[0],
    }


def comparison(args: Flags) -> Comparison:
    """Compare PAR Transformer-XL in each order with the first one and, where it is installed, x-transformers."""
    models = language_models(args)

    def draw(rows: int, length: int) -> Tensor:
        return torch.randint(args.vocab_size, (rows, length), device=args.device)

    @torch.no_grad()
    def calls(rows: int, length: int, remembered: int, clamp_length: int | None) -> Calls:
        past, ids = draw(rows, remembered), draw(rows, length + 1)
        found = {}
        for name, model in models.items():
            remember(model.eval(), remembered, clamp_length)
            found[name] = (our_calls if name.startswith(OURS) else x_transformers_calls)(model, past, ids)
        return found

    def tasks() -> Iterator[Task]:
        for length, remembered in ((args.train_length, args.train_length), (args.length, args.memory_length)):
            losses = contenders.of_task(calls(args.batch_size, length, remembered, None), "loss")
            yield contenders.training(f"train step {args.batch_size}x{length} after {remembered}", models, losses)
        contenders.freeze(models)
        for rows in args.score_batch_sizes:
            found = calls(rows, args.length, args.memory_length, args.clamp_length)
            for task in ("score with memory", "score with cache"):
                yield contenders.counted(f"{task} {rows}x{args.length}", contenders.of_task(found, task))
        for rows in args.decode_batch_sizes:
            task = f"decode {rows}x{args.new_tokens} after {args.prompt_length}"
            yield contenders.decoding(task, models, draw(rows, args.prompt_length), args.new_tokens)

    found = calls(1, args.length, args.memory_length, args.clamp_length)
    memories = {name: sum(states.nbytes for states in calls["memory"]()) for name, calls in found.items()}
    scoring = contenders.of_task(found, "score with memory")
    counted = {name: round(1e3 * contenders.gigaflops(call)) for name, call in scoring.items()}
    totals = {
        "parameters": contenders.parameters(models),
        f"memory of {args.memory_length} tokens (bytes)": memories,
        f"MFLOP of scoring 1x{args.length} with memory": counted,
    }
    first = next(iter(models))
    peers = {name: [first, name.replace(OURS, X_TRANSFORMERS)] for name in models if name.startswith(OURS)}
    remark = REMARK if find_spec("x_transformers") else f"Ratios are to the first order; {MISSING}"
    return Comparison(tasks(), peers, totals, remark)
