"""What `sublayers bench seq2seq` measures: encoder-decoders beside BART, Marian and x-transformers."""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel

from sublayers.configuration.configuration_sandwich_seq2seq import SandwichSeq2SeqConfig
from sublayers.configuration.sublayer_order import counts, interleaved, macaron, sandwich
from sublayers.modeling.modeling_sandwich_seq2seq import SandwichSeq2SeqForConditionalGeneration
from sublayers.training.metrics.timing import Call, Comparison, Task, read_shape, train_step

OURS, BART, MARIAN, X_TRANSFORMERS = "sublayers", "BART", "Marian", "x-transformers"
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


SIZES = {
    "layers": (6, "layers of the encoder, and as many of the decoder"),
    "hidden_size": (512, "width; feed-forward sublayers of the interleaved orders are four times as wide"),
    "heads": (8, "attention heads"),
    "vocab_size": (32000, "tokens in the vocabulary"),
    "new_tokens": (32, "tokens that are decoded"),
    "repeats": (5, "rounds, after one to warm up"),
}
# measured unless --orders says otherwise
ORDERS = "encoder:decoder, interleaved, Macaron's, and half sandwiched on either side"
# what other benches do not have
FLAGS: dict[str, dict[str, Any]] = {"--shapes": {"nargs": "+", "default": ["8x32", "mixed"], "help": "rows x tokens"}}


def default_orders(args: argparse.Namespace) -> list[str]:
    """The Transformer, Macaron's layers, and a sandwich in the encoder or in the decoder, each half of it."""
    n, half = args.layers, args.layers // 2
    return [
        f"{interleaved(n)}:{interleaved(n, decoder=True)}",
        f"{macaron(n)}:{macaron(n, decoder=True)}",
        f"{sandwich(n, half)}:{interleaved(n, decoder=True)}",
        f"{interleaved(n)}:{sandwich(n, half, decoder=True)}",
    ]


def encoder_decoders(args: argparse.Namespace) -> dict[str, Any]:
    """Build BART, Marian, our models in each pair of orders and x-transformers, all with the same sizes, no dropout."""
    torch.manual_seed(0)
    longest = max(max(lengths) for shape in args.shapes for lengths in read_lengths(shape))
    positions = max(longest, args.new_tokens + 1)
    special = {"pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    sizes = {"vocab_size": args.vocab_size, "max_position_embeddings": positions, "dropout": 0.0} | special
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "layers": args.layers,
            "attention_heads": args.heads,
            "ffn_dim": 4 * args.hidden_size,
        }.items()
    }
    peers = {"d_model": args.hidden_size, **sizes, **sides, "forced_eos_token_id": None}
    models: dict[str, Any] = {
        BART: BartForConditionalGeneration(BartConfig(**peers)),
        MARIAN: MarianMTModel(MarianConfig(**peers, scale_embedding=True)),
    }
    for orders in args.orders:
        encoder, decoder = orders.split(":")
        feed_forwards = counts(encoder)["f"] + counts(decoder)["f"]
        config = SandwichSeq2SeqConfig(
            encoder_sublayer_order=encoder,
            decoder_sublayer_order=decoder,
            hidden_size=args.hidden_size,
            intermediate_size=8 * args.hidden_size * args.layers // feed_forwards,
            num_attention_heads=args.heads,
            # these are BART's options
            hidden_act="gelu",
            embedding_norm=True,
            position_embedding_type="learned",
            scale_embedding=False,
            **sizes,
        )
        models[f"{OURS} {orders}"] = SandwichSeq2SeqForConditionalGeneration(config)
    if find_spec("x_transformers"):
        models[X_TRANSFORMERS] = x_transformer(args, positions)
    return {name: model.to(args.device, getattr(torch, args.dtype)) for name, model in models.items()}


def x_transformer(args: argparse.Namespace, positions: int) -> nn.Module:
    """Build the encoder-decoder of x-transformers that is nearest to ours."""
    from x_transformers import XTransformer

    side = {
        "num_tokens": args.vocab_size,
        "max_seq_len": positions,
        "depth": args.layers,
        "heads": args.heads,
        "attn_dim_head": args.hidden_size // args.heads,
        "attn_flash": True,
    }
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


def make_batch(shape: str, args: argparse.Namespace) -> dict[str, Tensor]:
    """Draw random sources, padded on the right, and labels, whose padding is -100."""
    source, target = (torch.tensor(lengths)[:, None] for lengths in read_lengths(shape))
    mask, labelled = (torch.arange(int(lengths.max())) < lengths for lengths in (source, target))
    ids = torch.randint(5, args.vocab_size, mask.shape).masked_fill(~mask, PAD)
    labels = torch.randint(5, args.vocab_size, labelled.shape).masked_fill(~labelled, -100)
    batch = {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}
    return {name: tensor.to(args.device) for name, tensor in batch.items()}


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


def gigaflops(call: Call) -> float:
    """Count the GFLOP of the matrix products that a call runs, without those in attention's kernel."""
    onednn = torch.backends.mkldnn.enabled
    # products in oneDNN by itself are not counted
    torch.backends.mkldnn.set_flags(False)
    with FlopCounterMode(display=False) as counter:
        call()
    torch.backends.mkldnn.set_flags(onednn)
    return counter.get_total_flops() / 1e9


def comparison(args: argparse.Namespace) -> Comparison:
    """Compare our encoder-decoders with BART, Marian and x-transformers, task by task and shape by shape."""
    models = encoder_decoders(args)

    def calls(shape: str) -> dict[str, dict[str, Call]]:
        batch = make_batch(shape, args)
        return {
            name: (x_transformers_calls if name == X_TRANSFORMERS else transformers_calls)(
                model, batch, args.new_tokens
            )
            for name, model in models.items()
        }

    ours = [name for name in models if name.startswith(OURS)]
    peers = {name: [peer for peer in models if peer not in ours] if name in ours else [] for name in models}
    return compare(models, peers, calls, args, REMARK)


def compare(
    models: dict[str, Any],
    peers: dict[str, list[str]],
    calls: Callable[[str], dict[str, dict[str, Call]]],
    args: argparse.Namespace,
    remark: str,
) -> Comparison:
    """Compare training steps, encoders and decoding of models, whose `calls` for a shape have names by model."""
    totals = {"parameters": {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}}

    def tasks() -> Iterator[Task]:
        steps = {name: train_step(model.train()) for name, model in models.items()}
        for shape in args.shapes:
            by_model: dict[str, Call] = {
                name: partial(steps[name], call["training step"]) for name, call in calls(shape).items()
            }
            work = {name: gigaflops(call) for name, call in by_model.items()}
            yield Task(f"training step {shape}", "GFLOP", by_model, work)
        steps.clear()
        for model in models.values():
            model.eval().requires_grad_(False)
        for shape in args.shapes:
            found = calls(shape)
            by_model = {name: call["encoder"] for name, call in found.items()}
            yield Task(f"encoder {shape}", "GFLOP", by_model, {name: gigaflops(c) for name, c in by_model.items()})
            for decoding in ("greedy", f"beam {BEAMS}"):
                by_model = {name: call[decoding] for name, call in found.items() if decoding in call}
                work = {
                    name: args.new_tokens * sum(p.nbytes for p in models[name].parameters()) / 1e9 for name in by_model
                }
                yield Task(f"{decoding} {shape}, {args.new_tokens} tokens", "GB", by_model, work)

    return Comparison(tasks(), peers, totals, remark)
