"""What `sublayers bench seq2seq` measures: encoder-decoders beside BART, Marian and x-transformers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel, PreTrainedModel

from sublayers.configuration.configuration_sandwich_seq2seq import SandwichSeq2SeqConfig
from sublayers.configuration.order import Order, interleaved, macaron, sandwich
from sublayers.modeling.modeling_sandwich_seq2seq import SandwichSeq2SeqForConditionalGeneration
from sublayers.training.flags import flag
from sublayers.training.lab.bench import contenders
from sublayers.training.lab.bench.contenders import OURS, X_TRANSFORMERS, Calls
from sublayers.training.lab.bench.flags import BenchFlags, size
from sublayers.training.metrics.timing import Call, Comparison, Task, read_shape

BART, MARIAN = "BART", "Marian"
PAD = 1
BEAMS = 5
REMARK = (
    "Ratios are to BART and Marian in transformers and, where it is installed, to x-transformers, which is pre-norm "
    "and has no biases in attention and no beam search. Orders with more feed-forward sublayers have narrower ones, so "
    "that all have the same parameters. Decoding makes the same number of tokens for every source."
)
# tokens in the first 32 pairs of Multi30k's validation set, German and English, with a joint BPE of 6,000
SOURCE_LENGTHS = [13, 12, 13, 20, 25, 41, 10, 27, 12, 19, 15, 12, 15, 21, 13, 17]
SOURCE_LENGTHS += [14, 14, 13, 20, 24, 18, 18, 18, 6, 12, 12, 11, 13, 15, 10, 17]
TARGET_LENGTHS = [14, 12, 12, 18, 17, 34, 11, 23, 14, 15, 14, 13, 13, 16, 11, 23]
TARGET_LENGTHS += [13, 17, 13, 18, 20, 18, 13, 18, 14, 12, 11, 12, 15, 17, 13, 18]

ORDERS = "encoder:decoder, interleaved, Macaron's, and half sandwiched on either side"


@dataclass(kw_only=True)
class Flags(BenchFlags):
    """Flags of `sublayers bench seq2seq`."""

    layers: int = size("layers", 6)
    hidden_size: int = size("hidden_size", 512)
    heads: int = size("heads", 8)
    vocab_size: int = size("vocab_size", 32000)
    new_tokens: int = size("new_tokens", 32)
    repeats: int = size("repeats", 5)
    shapes: list[str] = flag("rows x tokens", ["8x32", "mixed"])


def default_orders(args: Flags) -> list[str]:
    """The Transformer, Macaron's layers, and a sandwich in the encoder or in the decoder, each half of it."""
    n, half = args.layers, args.layers // 2
    return [
        f"{interleaved(n)}:{interleaved(n, decoder=True)}",
        f"{macaron(n)}:{macaron(n, decoder=True)}",
        f"{sandwich(n, half)}:{interleaved(n, decoder=True)}",
        f"{interleaved(n)}:{sandwich(n, half, decoder=True)}",
    ]


def sizes_of(args: Any) -> dict[str, Any]:
    """Give the sizes that all encoder-decoders have, with room for every shape."""
    longest = max(max(lengths) for shape in args.shapes for lengths in read_lengths(shape))
    positions = max(longest, args.new_tokens + 1)
    return contenders.sizes(args, max_position_embeddings=positions, dropout=0.0, pad_token_id=PAD)


def encoder_decoders(args: Flags) -> dict[str, Any]:
    """Build BART, Marian, our models in each pair of orders and x-transformers, all with the same sizes, no dropout."""
    torch.manual_seed(0)
    sizes = sizes_of(args) | {"bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    side = {"layers": args.layers, "attention_heads": args.heads, "ffn_dim": 4 * args.hidden_size}
    sides = {f"{prefix}_{name}": value for prefix in ("encoder", "decoder") for name, value in side.items()}
    peers = sizes | sides | {"forced_eos_token_id": None}
    models: dict[str, Any] = {
        BART: BartForConditionalGeneration(BartConfig(**peers)),
        MARIAN: MarianMTModel(MarianConfig(**peers, scale_embedding=True)),
    }
    # BART has these options
    options: dict[str, Any] = {"hidden_act": "gelu", "embedding_norm": True, "scale_embedding": False}
    options["position_embedding_type"] = "learned"
    for orders in args.orders:
        encoder, decoder = orders.split(":")
        feed_forwards = Order(encoder).counts["f"] + Order(decoder).counts["f"]
        sizes["intermediate_size"] = 8 * args.hidden_size * args.layers // feed_forwards
        both: dict[str, Any] = {"encoder_sublayer_order": encoder, "decoder_sublayer_order": decoder}
        config = SandwichSeq2SeqConfig(**both, **sizes, **options)
        models[f"{OURS} {orders}"] = SandwichSeq2SeqForConditionalGeneration(config)
    if find_spec("x_transformers"):
        models[X_TRANSFORMERS] = x_transformer(args, sizes["max_position_embeddings"])
    return contenders.place(models, args)


def x_transformer(args: Any, positions: int) -> nn.Module:
    """Build the encoder-decoder of x-transformers that is nearest to ours."""
    from x_transformers import XTransformer

    side = {"num_tokens": args.vocab_size, "max_seq_len": positions, "depth": args.layers, "heads": args.heads}
    side |= {"attn_dim_head": args.hidden_size // args.heads, "attn_flash": True}
    sides = {f"{prefix}_{name}": value for prefix in ("enc", "dec") for name, value in side.items()}
    model = XTransformer(dim=args.hidden_size, tie_token_emb=True, pad_value=PAD, **sides)
    model.decoder.net.to_logits.weight = model.decoder.net.token_emb.emb.weight
    return model


def read_lengths(shape: str) -> tuple[list[int], list[int]]:
    """Turn `8x32` into the lengths of 8 sources and of 8 targets; `mixed` are 32 pairs of Multi30k.

    Raises what `read_shape` raises.
    """
    if shape == "mixed":
        return SOURCE_LENGTHS, TARGET_LENGTHS
    return (read_shape(shape),) * 2


def make_batch(shape: str, args: Any) -> dict[str, Tensor]:
    """Draw random sources, and labels, whose padding is -100."""
    source, target = read_lengths(shape)
    ids, mask = contenders.draw_rows(source, PAD, args)
    labels, _ = contenders.draw_rows(target, -100, args)
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


def transformers_calls(model: Any, batch: dict[str, Tensor], new_tokens: int, **options: Any) -> dict[str, Call]:
    """Make what a model of transformers, ours among them, has to call; options are those of `generate`."""
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}

    def decode(num_beams: int) -> Tensor:
        lengths = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
        return model.generate(**source, **lengths, num_beams=num_beams, do_sample=False, **options)

    return {
        "training step": partial(model, **batch),
        "encoder": partial(model.get_encoder(), **source),
        "greedy": partial(decode, 1),
        f"beam {BEAMS}": partial(decode, BEAMS),
    }


def x_transformers_calls(model: Any, batch: dict[str, Tensor], new_tokens: int) -> dict[str, Call]:
    """Make what a model of x-transformers has to call, which searches no beams."""
    ids, mask = batch["input_ids"], batch["attention_mask"].bool()
    start = torch.full_like(ids[:, :1], 2)
    # BART shifts the target itself
    target = torch.cat([start, batch["labels"]], dim=1)
    return {
        "training step": partial(model, ids, target, mask),
        "encoder": partial(model.encoder, ids, mask=mask, return_embeddings=True),
        "greedy": partial(model.generate, ids, start, new_tokens, mask=mask, temperature=0.0),
    }


def comparison(args: Flags) -> Comparison:
    """Compare our encoder-decoders with BART, Marian and x-transformers, task by task and shape by shape."""
    models = encoder_decoders(args)

    def calls(model: Any, batch: dict[str, Tensor]) -> dict[str, Call]:
        make = transformers_calls if isinstance(model, PreTrainedModel) else x_transformers_calls
        return make(model, batch, args.new_tokens)

    others = [name for name in models if not name.startswith(OURS)]
    return compare(models, {name: others for name in models if name not in others}, calls, args, REMARK)


def compare(
    models: dict[str, Any],
    peers: dict[str, list[str]],
    calls: Callable[[Any, dict[str, Tensor]], dict[str, Call]],
    args: Any,
    remark: str,
) -> Comparison:
    """Compare training steps, encoders and decoding of models; `calls` makes what a model calls on a batch."""

    def all_calls(shape: str) -> Calls:
        batch = make_batch(shape, args)
        return {name: calls(model, batch) for name, model in models.items()}

    def tasks() -> Iterator[Task]:
        for shape in args.shapes:
            losses = contenders.of_task(all_calls(shape), "training step")
            yield contenders.training(f"training step {shape}", models, losses)
        contenders.freeze(models)
        for shape in args.shapes:
            found = all_calls(shape)
            yield contenders.counted(f"encoder {shape}", contenders.of_task(found, "encoder"))
            for task in ("greedy", f"beam {BEAMS}"):
                name = f"{task} {shape}, {args.new_tokens} tokens"
                yield Task(name, "GB", contenders.of_task(found, task), contenders.gigabytes(models, args.new_tokens))

    return Comparison(tasks(), peers, {"parameters": contenders.parameters(models)}, remark)
