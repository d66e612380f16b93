"""What `sublayers bench bert` measures: BERT-like models in several orders beside transformers' own."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
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
from sublayers.configuration.order import interleaved, par
from sublayers.convert.modern_bert import configure
from sublayers.training.flags import flag, number
from sublayers.training.lab.bench import contenders
from sublayers.training.lab.bench.contenders import OURS
from sublayers.training.lab.bench.flags import BenchFlags, size
from sublayers.training.metrics.timing import Call, Comparison, Task, read_shape

BERT, DISTILBERT, MODERNBERT = "BERT", "DistilBERT", "ModernBERT"
REMARK = "Ratios are to transformers' models of the same sizes."
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

ORDERS = "BERT's, PAR BERT's and three with attention first; ModernBERT's and three of its sublayers"


@dataclass(kw_only=True)
class Flags(BenchFlags):
    """Flags of `sublayers bench bert`."""

    layers: int = number("layers of BERT; DistilBERT has half of them", 12)
    hidden_size: int = size("hidden_size", 768)
    heads: int = size("heads", 12)
    vocab_size: int = size("vocab_size", 30522)
    repeats: int = size("repeats", 5)
    peer: Literal["bert", "modernbert"] = flag(
        "compare with BERT and DistilBERT, or with ModernBERT, whose parts our model then gets", "bert"
    )
    shapes: list[str] = flag("rows x tokens", ["1x128", "1x384", "8x128", "mixed"])
    tasks: list[str] = flag("what is measured", [*HEADS], choices=HEADS)


def default_orders(args: Any) -> list[str]:
    """BERT's order, PAR BERT's, and three that have their attention first; or ModernBERT's and three of its sublayers.

    These have attention first, one attention for five of the others, and half of the layers.
    """
    n = args.layers
    few = max(1, 5 * n // 12)
    if args.peer == "modernbert":
        # one of three attentions sees the whole text
        mixers = "".join("w" if layer % 3 else "s" for layer in range(n))
        own = "".join(f"{mixer}f" for mixer in mixers)
        return [own, f"{mixers}f{n}", f"{mixers[:few]}f{2 * n - few}", own[: 2 * max(1, n // 2)]]
    third = max(1, 2 * n // 3)
    sandwich = f"s{third}(sf){n - third}f{third}"
    return [interleaved(n), par(2 * n, min(5, 2 * n)), sandwich, f"s{n}f{n}", f"s{few}f{2 * n - 5 * n // 12}"]


def berts(args: Any, head: Any) -> dict[str, Any]:
    """Build the peers and PAR BERT in each order, all with the same sizes.

    The peers are BERT, and DistilBERT with half of its layers, or ModernBERT, whose parts PAR BERT then has, too.
    """
    torch.manual_seed(0)
    positions = max(max(read_lengths(shape)) for shape in args.shapes)
    sizes = contenders.sizes(args, max_position_embeddings=positions)
    configs = modern_configs(args, sizes) if args.peer == "modernbert" else bert_configs(args, sizes)
    return {name: head.from_config(config) for name, config in configs.items()}


def modern_configs(args: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """Configure ModernBERT, and PAR BERT with its parts in each order."""
    tokens: dict[str, Any] = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
    sizes = sizes | tokens | {"intermediate_size": 3 * args.hidden_size // 2, "num_hidden_layers": args.layers}
    peer = ModernBertConfig(**sizes)
    return {MODERNBERT: peer} | {f"{OURS} {order}": configure(peer, order) for order in args.orders}


def bert_configs(args: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """Configure BERT, DistilBERT with half of its layers, and PAR BERT in each order."""
    # DistilBERT has another name for the inner width; all others have this dropout
    distilled = sizes | {"hidden_dim": sizes["intermediate_size"], "seq_classif_dropout": 0.1}
    distilled["num_hidden_layers"] = max(1, args.layers // 2)
    configs: dict[str, Any] = {
        BERT: BertConfig(**sizes, num_hidden_layers=args.layers),
        DISTILBERT: DistilBertConfig(**distilled),
    }
    return configs | {f"{OURS} {order}": PARBertConfig(sublayer_order=order, **sizes) for order in args.orders}


def read_lengths(shape: str) -> list[int]:
    """Turn `8x128` into the lengths of its rows; `mixed` are 32 sentence pairs. Raises what `read_shape` raises."""
    return MIXED_LENGTHS if shape == "mixed" else read_shape(shape)


def make_batch(shape: str, args: Any) -> dict[str, Tensor]:
    """Draw random tokens in rows of a shape."""
    ids, mask = contenders.draw_rows(read_lengths(shape), 0, args)
    return {"input_ids": ids, "attention_mask": mask.long()}


def make_labels(task: str, batch: dict[str, Tensor], args: Any) -> dict[str, Tensor]:
    """Draw what the task trains on: classes, or every seventh token of each row, which are 15 %."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    if task == "fine-tuning step":
        return {"labels": torch.randint(2, (len(ids),), device=args.device)}
    if task == "MLM training step":
        chosen = (torch.arange(ids.shape[1], device=args.device) % 7 == 1) & mask.bool()
        return {"labels": torch.where(chosen, ids, -100)}
    return {}


def comparison(args: Flags) -> Comparison:
    """Compare PAR BERT in each order with its peers, task by task and shape by shape."""

    def tasks() -> Iterator[Task]:
        for kind in args.tasks:
            models = contenders.place(berts(args, HEADS[kind]), args)
            training = kind.endswith("step")
            for model in models.values():
                model.train(training).requires_grad_(training)
            for shape in args.shapes:
                batch = make_batch(shape, args)
                batch |= make_labels(kind, batch, args)
                calls: dict[str, Call] = {name: partial(model, **batch) for name, model in models.items()}
                title = f"{kind} {shape}"
                yield contenders.training(title, models, calls) if training else contenders.counted(title, calls)

    with torch.device("meta"):
        bodies = berts(args, AutoModelForSequenceClassification)
    first = [MODERNBERT] if args.peer == "modernbert" else [BERT, DISTILBERT]
    peers = {name: first for name in bodies if name not in first}
    return Comparison(tasks(), peers, {"parameters": contenders.parameters(bodies)}, REMARK)
