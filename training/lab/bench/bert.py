"""What `sublayers bench bert` measures: BERT-like models in several orders beside transformers' own."""

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    DistilBertConfig,
    ModernBertConfig,
)

from sublayers.configuration.configuration_par_bert import PARBertConfig
from sublayers.configuration.sublayer_order import interleaved, par
from sublayers.training.convert.modern_bert import configure
from sublayers.training.metrics.timing import Call, Comparison, Task, read_shape, train_step

OURS, BERT, DISTILBERT, MODERNBERT = "sublayers", "BERT", "DistilBERT", "ModernBERT"
REMARK = (
    "Ratios are to transformers' models of the same sizes. GFLOP/s counts the linear maps that a "
    "model runs, floor is the time that these take alone, a training step's as often as its gradients need them."
)
# the numbers of tokens in the first 32 pairs of MRPC's validation set, with BERT's vocabulary
MIXED_LENGTHS = [44, 52, 74, 47, 36, 48, 52, 67, 49, 51, 78, 47, 64, 70, 53, 55]
MIXED_LENGTHS += [59, 65, 74, 48, 37, 53, 42, 68, 49, 45, 51, 60, 53, 58, 45, 68]
HEADS = {
    "classification": AutoModelForSequenceClassification,
    "token classification": AutoModelForTokenClassification,
    "question answering": AutoModelForQuestionAnswering,
    "fine-tuning step": AutoModelForSequenceClassification,
    "MLM training step": AutoModelForMaskedLM,
}


SIZES = {
    "layers": (12, "layers of BERT; DistilBERT has half of them"),
    "hidden_size": (768, "width; feed-forward sublayers are four times as wide"),
    "heads": (12, "attention heads"),
    "vocab_size": (30522, "tokens in the vocabulary"),
    "repeats": (5, "rounds, after one to warm up"),
}
# measured unless --orders says otherwise
ORDERS = "BERT's, PAR BERT's and three with attention first; ModernBERT's and three of its sublayers"
# what other benches do not have
FLAGS: dict[str, dict[str, Any]] = {
    "--peer": {
        "choices": ("bert", "modernbert"),
        "default": "bert",
        "help": "compare with BERT and DistilBERT, or with ModernBERT, whose parts our model then gets",
    },
    "--shapes": {"nargs": "+", "default": ["1x128", "1x384", "8x128", "mixed"], "help": "rows x tokens"},
    "--tasks": {"nargs": "+", "choices": HEADS, "default": [*HEADS], "help": "what is measured"},
}


def default_orders(args: argparse.Namespace) -> list[str]:
    """BERT's order, PAR BERT's, and three that have their attention first; or ModernBERT's and three of its sublayers.

    These have attention first, one attention for five of the others, and half of the layers.
    """
    n = args.layers
    if args.peer == "modernbert":
        mixers = modern_mixers(n)
        few = mixers[: max(1, 5 * n // 12)]
        own = "".join(f"{mixer}f" for mixer in mixers)
        return [own, f"{mixers}f{n}", f"{few}f{2 * n - len(few)}", own[: 2 * max(1, n // 2)]]
    third = max(1, 2 * n // 3)
    sandwich = f"s{third}(sf){n - third}f{third}"
    return [
        interleaved(n),
        par(2 * n, min(5, 2 * n)),
        sandwich,
        f"s{n}f{n}",
        f"s{max(1, 5 * n // 12)}f{2 * n - 5 * n // 12}",
    ]


def modern_mixers(layers: int) -> str:
    """ModernBERT's attentions: one of three sees the whole text."""
    return "".join("w" if layer % 3 else "s" for layer in range(layers))


def berts(args: argparse.Namespace, head: type) -> dict[str, nn.Module]:
    """Build the peers and PAR BERT in each order, all with the same sizes.

    The peers are BERT, and DistilBERT with half of its layers, or ModernBERT, whose parts PAR BERT then has, too.
    """
    torch.manual_seed(0)
    positions = max(max(read_lengths(shape)) for shape in args.shapes)
    sizes = {"vocab_size": args.vocab_size, "max_position_embeddings": positions}
    sizes |= {"hidden_size": args.hidden_size, "num_attention_heads": args.heads}
    configs = modern_configs(args, sizes) if args.peer == "modernbert" else bert_configs(args, sizes)
    return {
        name: head.from_config(config).to(args.device, getattr(torch, args.dtype))  # type: ignore[attr-defined]
        for name, config in configs.items()
    }


def modern_configs(args: argparse.Namespace, sizes: dict[str, Any]) -> dict[str, Any]:
    """Configure ModernBERT, and PAR BERT with its parts in each order."""
    tokens = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
    peer = ModernBertConfig(
        **sizes,
        **dict.fromkeys(tokens, 0),  # type: ignore[arg-type]
        intermediate_size=3 * args.hidden_size // 2,
        num_hidden_layers=args.layers,
    )
    return {MODERNBERT: peer} | {f"{OURS} {order}": configure(peer, order) for order in args.orders}


def bert_configs(args: argparse.Namespace, sizes: dict[str, Any]) -> dict[str, Any]:
    """Configure BERT, DistilBERT with half of its layers, and PAR BERT in each order."""
    inner: dict[str, Any] = {"intermediate_size": 4 * args.hidden_size}
    configs: dict[str, Any] = {
        BERT: BertConfig(**sizes, **inner, num_hidden_layers=args.layers),
        DISTILBERT: DistilBertConfig(
            vocab_size=sizes["vocab_size"],
            max_position_embeddings=sizes["max_position_embeddings"],
            n_layers=max(1, args.layers // 2),
            n_heads=args.heads,
            dim=args.hidden_size,
            hidden_dim=4 * args.hidden_size,
            # this dropout is that of all others
            seq_classif_dropout=0.1,
        ),
    }
    for order in args.orders:
        configs[f"{OURS} {order}"] = PARBertConfig(sublayer_order=order, **sizes, **inner)
    return configs


def read_lengths(shape: str) -> list[int]:
    """Turn `8x128` into the lengths of its rows; `mixed` are 32 sentence pairs. Raises what `read_shape` raises."""
    return MIXED_LENGTHS if shape == "mixed" else read_shape(shape)


def make_batch(shape: str, args: argparse.Namespace) -> dict[str, Tensor]:
    """Draw random tokens in rows of given lengths, padded on the right."""
    lengths = read_lengths(shape)
    longest = max(lengths)
    ids = torch.randint(5, args.vocab_size, (len(lengths), longest))
    mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": (ids * mask).to(args.device), "attention_mask": mask.to(args.device)}


def make_labels(task: str, batch: dict[str, Tensor], args: argparse.Namespace) -> dict[str, Tensor]:
    """Draw what the task trains on: classes, or every seventh token of each row, which are 15 %."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    if task == "fine-tuning step":
        return {"labels": torch.randint(2, (len(ids),), device=args.device)}
    if task == "MLM training step":
        chosen = (torch.arange(ids.shape[1], device=args.device) % 7 == 1) & mask.bool()
        return {"labels": torch.where(chosen, ids, -100)}
    return {}


def linear_maps(model: nn.Module, call: Call) -> tuple[Call, float]:
    """Make a call that runs only the linear maps of a call of the model, and count their GFLOP."""
    maps: list[tuple[nn.Linear, Tensor]] = []

    def record(module: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        maps.append((module, inputs[0].detach()))

    hooks = [m.register_forward_hook(record) for m in model.modules() if isinstance(m, nn.Linear)]
    call()
    for hook in hooks:
        hook.remove()

    def forward() -> None:
        with torch.no_grad():
            for module, states in maps:
                module(states)

    def training_step() -> None:
        for module, states in maps:
            module(states.requires_grad_()).sum().backward()
            states.grad = None
        model.zero_grad()

    gigaflops = sum(2 * states.numel() * module.out_features for module, states in maps) / 1e9
    return (training_step, 3 * gigaflops) if model.training else (forward, gigaflops)


def comparison(args: argparse.Namespace) -> Comparison:
    """Compare PAR BERT in each order with its peers, task by task and shape by shape."""
    first = [MODERNBERT] if args.peer == "modernbert" else [BERT, DISTILBERT]

    def tasks() -> Iterator[Task]:
        for kind in args.tasks:
            models = berts(args, HEADS[kind])
            training = kind.endswith("step")
            for model in models.values():
                model.train(training).requires_grad_(training)
            steps = {name: train_step(model) for name, model in models.items()} if training else {}
            for shape in args.shapes:
                batch = make_batch(shape, args)
                batch |= make_labels(kind, batch, args)
                calls: dict[str, Call] = {name: partial(model, **batch) for name, model in models.items()}
                floors = {name: linear_maps(model, calls[name]) for name, model in models.items()}
                if training:
                    calls = {name: partial(steps[name], call) for name, call in calls.items()}
                yield Task(
                    f"{kind} {shape}",
                    "GFLOP",
                    calls,
                    {name: work for name, (_, work) in floors.items()},
                    {name: floor for name, (floor, _) in floors.items()},
                )

    with torch.device("meta"):
        bodies = berts(argparse.Namespace(**vars(args) | {"device": "meta"}), AutoModelForSequenceClassification)
    totals = {"parameters": {name: sum(p.numel() for p in model.parameters()) for name, model in bodies.items()}}
    peers = {name: [] if name in first else first for name in bodies}
    return Comparison(tasks(), peers, totals, REMARK)
