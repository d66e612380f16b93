"""What `sublayers bench lm --memory` measures: PAR Transformer-XL in several orders beside x-transformers."""

import argparse
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from sublayers.configuration.configuration_par_transformer_xl import PARTransformerXLConfig
from sublayers.configuration.sublayer_order import expand, interleaved, par
from sublayers.modeling.modeling_par_transformer_xl import PARTransformerXLForCausalLM
from sublayers.training.flags import positive
from sublayers.training.lab.bench.lm import OURS, X_TRANSFORMERS, Models
from sublayers.training.lab.bench.seq2seq import gigaflops
from sublayers.training.metrics.timing import Call, Comparison, Task, train_step

MISSING = (
    'Ratios are to the first order; x-transformers is not installed, pip install "sublayers[bench]" adds it to the '
    "comparison."
)
REMARK = (
    "Ratios are to the first order and to x-transformers in the same order, which has T5's distances: no map of "
    "distances, and a number for each of 32 kinds of them and each head."
)


# half of the paper's base model, whose adaptive softmax scores 20,000 columns
SIZES = {
    "layers": (8, "self-attention sublayers of the interleaved order, and as many feed-forward ones"),
    "hidden_size": (512, "width; feed-forward sublayers are four times as wide"),
    "heads": (8, "attention heads"),
    "vocab_size": (10000, "tokens in the vocabulary"),
    "batch_size": (4, "texts in a train step"),
    "length": (64, "tokens of a segment that is scored, and of one in a train step"),
    "memory_length": (640, "tokens that are remembered before it, and in generation"),
    "clamp_length": (400, "largest distance in scoring and generation; larger ones count as this"),
    "train_length": (192, "tokens of a segment, and of the memory before it, in another train step"),
    "prompt_length": (640, "tokens before decoding"),
    "new_tokens": (16, "tokens that are decoded"),
    "repeats": (5, "rounds, after one to warm up"),
}
# measured unless --orders says otherwise
ORDERS = "interleaved and PAR's"
# what other benches do not have
FLAGS: dict[str, dict[str, Any]] = {
    "--memory": {"action": "store_true", "help": "chooses these models"},
    "--decode_batch_sizes": {"type": positive, "nargs": "+", "default": [1], "help": "texts that are decoded"},
    "--score_batch_sizes": {"type": positive, "nargs": "+", "default": [1, 4], "help": "texts that are scored"},
}


def default_orders(args: argparse.Namespace) -> list[str]:
    """The interleaved order, and PAR's of as many sublayers."""
    return [interleaved(args.layers), par(2 * args.layers, 5)]


def language_models(args: argparse.Namespace) -> Models:
    """Build PAR Transformer-XL in each order and, where it is installed, x-transformers in the same orders.

    All have the same sizes, one matrix for embedding and output, and no dropout.
    """
    torch.manual_seed(0)
    models: Models = {}
    for order in args.orders:
        config = PARTransformerXLConfig(
            sublayer_order=order,
            vocab_size=args.vocab_size,
            hidden_size=args.hidden_size,
            intermediate_size=4 * args.hidden_size,
            num_attention_heads=args.heads,
            adaptive_cutoffs=None,
            dropout=0.0,
            activation_dropout=0.0,
        )
        models[f"{OURS} {order}"] = (order, PARTransformerXLForCausalLM(config))
    for order in args.orders if find_spec("x_transformers") else []:
        models[f"{X_TRANSFORMERS} {order}"] = (order, x_transformer(order, args))
    for _, model in models.values():
        model.to(args.device, getattr(torch, args.dtype))
    return models


def x_transformer(order: str, args: argparse.Namespace) -> nn.Module:
    """Build the language model with memory of x-transformers that is nearest to ours."""
    from x_transformers import Decoder, TransformerWrapper, XLAutoregressiveWrapper

    layers = Decoder(
        dim=args.hidden_size,
        depth=args.layers,
        heads=args.heads,
        attn_dim_head=args.hidden_size // args.heads,
        rel_pos_bias=True,
        ff_custom_activation=nn.ReLU(),
        custom_layers=tuple(expand(order).replace("s", "a")),
    )
    body = TransformerWrapper(
        num_tokens=args.vocab_size,
        max_seq_len=args.length,
        max_mem_len=args.memory_length,
        attn_layers=layers,
        tie_embedding=True,
    )
    return XLAutoregressiveWrapper(body)


def remember(model: Any, length: int, clamp_length: int | None) -> None:
    """Set how many tokens a model remembers and, for ours, the distance at which larger ones are clamped."""
    if isinstance(model, PARTransformerXLForCausalLM):
        model.config.memory_length, model.config.clamp_length = length, clamp_length
    else:
        model.net.max_mem_len = length


def gigaflops_of(model: Any, call: Call) -> float:
    """Count the GFLOP of all matrix products of a call, those in attention's kernel included."""
    if not isinstance(model, PARTransformerXLForCausalLM):
        return gigaflops(call)
    kernel = model.config._attn_implementation
    model.set_attn_implementation("eager")
    counted = gigaflops(call)
    model.set_attn_implementation(kernel)
    return counted


def our_calls(model: Any, past: Tensor, ids: Tensor, prompts: dict[str, Tensor], new_tokens: int) -> dict[str, Call]:
    """Make what our model has to call on the tokens (batch, length + 1) that follow a past (batch, remembered)."""
    segment, labels = ids[:, :-1], ids[:, 1:]
    memory = model(past, memory=model.empty_memory(len(past)), logits_to_keep=1).memory
    # the cache keeps its length, however often it is used
    cache = model(past, use_cache=True, logits_to_keep=1).past_key_values

    def decode(prompt: Tensor) -> Tensor:
        mask = torch.ones_like(prompt)
        return model.generate(prompt, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False)

    return {
        "memory": lambda: memory,
        "loss": lambda: model(segment, memory=memory, shift_labels=labels).loss,
        "score with memory": lambda: model(segment, memory=memory).logits,
        "score with cache": lambda: model(segment, past_key_values=cache).logits,
        **{task: partial(decode, prompt) for task, prompt in prompts.items()},
    }


def x_transformers_calls(
    model: Any, past: Tensor, ids: Tensor, prompts: dict[str, Tensor], new_tokens: int
) -> dict[str, Call]:
    """Make what a model of x-transformers has to call; its cache cannot slide over a long text."""
    segment = ids[:, :-1]
    _, memory = model.net(past, return_mems=True)
    model.max_seq_len = segment.shape[1]
    return {
        "memory": lambda: memory,
        "loss": lambda: model(ids, mems=memory),
        "score with memory": lambda: model.net(segment, mems=memory, return_mems=True)[0],
        **{task: partial(model.generate, prompt, new_tokens, temperature=0.0) for task, prompt in prompts.items()},
    }


def comparison(args: argparse.Namespace) -> Comparison:
    """Compare PAR Transformer-XL in each order with the first one and, where it is installed, x-transformers."""
    models = language_models(args)

    def draw(rows: int, length: int) -> Tensor:
        return torch.randint(args.vocab_size, (rows, length), device=args.device)

    prompts = {
        f"decode {rows}x{args.new_tokens} after {args.prompt_length}": draw(rows, args.prompt_length)
        for rows in args.decode_batch_sizes
    }

    @torch.no_grad()
    def calls(rows: int, length: int, remembered: int, clamp_length: int | None) -> dict[str, dict[str, Call]]:
        past, ids = draw(rows, remembered), draw(rows, length + 1)
        found = {}
        for name, (_, model) in models.items():
            remember(model.eval(), remembered, clamp_length)
            make = x_transformers_calls if name.startswith(X_TRANSFORMERS) else our_calls
            found[name] = make(model, past, ids, prompts, args.new_tokens)
        return found

    def count(by_model: dict[str, Call]) -> dict[str, float]:
        return {name: gigaflops_of(models[name][1], call) for name, call in by_model.items()}

    def tasks() -> Iterator[Task]:
        for length, remembered in ((args.train_length, args.train_length), (args.length, args.memory_length)):
            found = calls(args.batch_size, length, remembered, None)
            for _, model in models.values():
                model.train()
            # no name here keeps the optimizers and their memory
            yield Task(
                f"train step {args.batch_size}x{length} after {remembered}",
                "GFLOP",
                {name: partial(train_step(model), found[name]["loss"]) for name, (_, model) in models.items()},
                {name: 3 * each for name, each in count({name: call["loss"] for name, call in found.items()}).items()},
            )
        for _, model in models.values():
            model.eval().requires_grad_(False)
        for rows in args.score_batch_sizes:
            found = calls(rows, args.length, args.memory_length, args.clamp_length)
            for task in ("score with memory", "score with cache"):
                by_model = {name: call[task] for name, call in found.items() if task in call}
                yield Task(f"{task} {rows}x{args.length}", "GFLOP", by_model, count(by_model))
        for task in prompts:
            gigabytes = {
                name: args.new_tokens * sum(p.nbytes for p in model.parameters()) / 1e9
                for name, (_, model) in models.items()
            }
            yield Task(task, "GB", {name: call[task] for name, call in found.items()}, gigabytes)

    found = calls(1, args.length, args.memory_length, args.clamp_length)
    totals = {
        "parameters": {name: sum(p.numel() for p in model.parameters()) for name, (_, model) in models.items()},
        f"memory of {args.memory_length} tokens (bytes)": {
            name: sum(states.nbytes for states in call["memory"]()) for name, call in found.items()
        },
        f"MFLOP of scoring 1x{args.length} with memory": {
            name: round(1e3 * each)
            for name, each in count({name: call["score with memory"] for name, call in found.items()}).items()
        },
    }
    first = next(iter(models))
    peers = {
        name: [peer for peer in (first, f"{X_TRANSFORMERS} {order}") if peer in models and peer != name]
        if name.startswith(OURS)
        else []
        for name, (order, _) in models.items()
    }
    return Comparison(tasks(), peers, totals, REMARK if find_spec("x_transformers") else MISSING)
