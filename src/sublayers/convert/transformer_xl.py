"""Conversions into the PAR Transformer-XL: its authors' checkpoints, NVIDIA's, and old folders of transformers."""

import argparse
import re
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch

from sublayers.configuration.configuration_par_transformer_xl import PARTransformerXLConfig
from sublayers.convert.weights import (
    QKV,
    Piece,
    Pieces,
    State,
    Weights,
    are_weights,
    assemble,
    load_checkpoint,
    refuse_others,
)
from sublayers.hub.loading import never_running_code
from sublayers.modeling.modeling_par_transformer_xl import PARTransformerXLForCausalLM

# the model_type in transformers before 5
MODEL_TYPE = "transfo-xl"
# only Transformer-XL has a weight of this name
TABLE = "word_emb.emb_layers.0.weight"
# how the names of a sublayer's weights begin; sorted, a layer's attention comes before its feed-forward part
SUBLAYER = re.compile(r"(?:layers\.(\d+)\.(?:dec_attn|pos_ff)|sub\.(\d+))\.")
# what NVIDIA calls parts of the softmax
SOFTMAX = {"out_layers_weights": "weight", "out_layers_biases": "bias"}
# options of another kind of attention and of an extended context
ONLY = {"attn_type": 0, "ext_len": 0}
# fields of our configuration, by the names of settings
TOLD = {
    "mem_len": "memory_length",
    "same_length": "same_length",
    "dropatt": "attention_dropout",
    "layer_norm_epsilon": "layer_norm_eps",
    "init_std": "initializer_range",
    "proj_init_std": "projection_initializer_range",
    **{name: name for name in ("pad_token_id", "bos_token_id", "eos_token_id")},
}


def flatten(module: argparse.Namespace, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """List the tensors in what is left of a module without its code, by the names that they have in its state."""
    for kind in ("_parameters", "_buffers"):
        for name, tensor in vars(module)[kind].items():
            if tensor is not None:
                yield f"{prefix}{name}", tensor.detach()
    for name, inner in module._modules.items():
        yield from flatten(inner, f"{prefix}{name}.")


def read_module(module: argparse.Namespace) -> tuple[Weights, dict[str, Any]]:
    """Take weights and settings out of the module that Transformer-XL's authors save as a whole."""
    inner = module._modules
    attention = inner["layers"]._modules["0"]._modules["dec_attn"]
    settings = vars(module) | {
        "cutoffs": inner["crit"].cutoffs[:-1],
        "pre_lnorm": attention.pre_lnorm,
        "dropout": inner["drop"].p,
        "dropatt": attention._modules["dropatt"].p,
    }
    return dict(flatten(module)), settings


def find_transformer_xl(checkpoint: Any, path: Path) -> tuple[Weights, dict[str, Any]] | None:
    """Find weights and settings in a checkpoint of Transformer-XL; None in all others.

    It is the module as a whole, as its authors save it, a dictionary of NVIDIA's, or weights without settings.

    Raises:
        ValueError: a module that is none of the authors', or settings that are none.
    """
    if isinstance(checkpoint, argparse.Namespace):
        with never_running_code(path):
            return read_module(checkpoint)
    if not isinstance(checkpoint, dict):
        return None
    if are_weights(weights := checkpoint.get("model_state")):
        with never_running_code(path):
            settings = dict(checkpoint.get("model_config") or checkpoint.get("config") or {})
            if settings.get("same_length"):
                # in NVIDIA's code, a token sees the memory and itself
                settings["mem_len"] += 1
            return weights, settings
    return (checkpoint, {}) if are_weights(checkpoint) and TABLE in checkpoint else None


def load_folder(source: Path) -> Weights:
    """Read the weights in a folder that transformers 4 saved.

    Raises:
        FileNotFoundError: there are none.
        ValueError: a file with something else.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (source / name).exists():
            if not are_weights(weights := load_checkpoint(source / name)):
                raise ValueError(f"{source / name} holds something else than weights; is the folder complete?")
            return weights
    raise FileNotFoundError(f"{source} has neither model.safetensors nor pytorch_model.bin; download one of them")


def rename(name: str) -> str:
    """Give a weight the name that it has with the authors."""
    name = name.removeprefix("transformer.")
    if (found := re.fullmatch(r"crit\.(\w+)\.(\d+)", name)) and found[1] in SOFTMAX:
        return f"crit.out_layers.{found[2]}.{SOFTMAX[found[1]]}"
    return name


def take_sublayers(state: State) -> tuple[str, dict[str, list[Pieces]]]:
    """Take the sublayers, of whole layers or one by one (`sub.3.`), and say in which order they stand."""
    starts = {found[0]: int(found[1] or found[2]) for name in state if (found := SUBLAYER.match(name))}
    order = ""
    sublayers: dict[str, list[Pieces]] = {"s": [], "f": []}
    for start in sorted(starts, key=lambda start: (starts[start], start)):
        pieces = state.take(f"{start}layer_norm", "norm")
        if f"{start}qkv_net.weight" in state:
            letter = "s"
            pieces |= state.take_joint(f"{start}qkv_net", QKV)
            pieces |= {f"mixer.{name}_proj.weight": state.take_piece(f"{start}{name}_net.weight") for name in "or"}
        else:
            letter = "f"
            pieces |= state.take_all({"CoreNet.0": "mixer.fc1", "CoreNet.3": "mixer.fc2"}, start)
        order += letter
        sublayers[letter].append(pieces)
    return order, sublayers


def take_biases(state: State, name: str) -> list[Piece]:
    """Take a bias of all attention sublayers, under its own name or that of every layer: one that they share, or each.

    Raises:
        ValueError: there is none.
    """
    keys = [key for key in state if key.split(".")[-1] == name]
    found = [state.pop(key) for key in sorted(keys, key=lambda key: [*map(int, re.findall(r"\d+", key))])]
    found = found or [state.take_piece(name)]
    if all(torch.equal(piece.tensor, found[0].tensor) for piece in found):
        return [Piece(found[0].tensor, tuple(key for piece in found for key in piece.names))]
    return found


def take_bands(state: State, cutoffs: list[int]) -> list[tuple[Piece, Piece, Piece]]:
    """Take the vectors of each band of words in the embeddings and in the softmax, and the latter's biases.

    Words of one width have one table, which only `cutoffs` tell how to divide.

    Raises:
        ValueError: a weight that is missing, or cutoffs that do not fit.
    """
    bands: list[tuple[Piece, Piece, Piece]] = []
    while not bands or f"word_emb.emb_layers.{len(bands)}.weight" in state:
        number = len(bands)
        table = state.take_piece(f"word_emb.emb_layers.{number}.weight")
        output = state.pop(f"crit.out_layers.{number}.weight", table)
        bands.append((table, output, state.take_piece(f"crit.out_layers.{number}.bias")))
    clusters = state["crit.cluster_weight"].shape[0] if "crit.cluster_weight" in state else 0
    if len(bands) == 1 and clusters:
        vocab_size = bands[0][0].shape[0]
        ends = [*pairwise([0, *cutoffs, vocab_size])]
        if len(cutoffs) != clusters or any(start >= end for start, end in ends):
            raise ValueError(
                f"cutoffs={cutoffs} do not divide {vocab_size} words into {clusters + 1} bands; convert a checkpoint "
                "that comes with its settings"
            )
        table, output, bias = bands[0]
        bands = [(table.cut(*end), output.cut(*end), bias.cut(*end)) for end in ends]
    return bands


def take_words(state: State, cutoffs: list[int]) -> tuple[Pieces, dict[str, Any]]:
    """Take embeddings and softmax: their weights, and the fields of the configuration. Weights that are equal are tied.

    Raises:
        ValueError: as `take_bands`.
    """
    bands = take_bands(state, cutoffs)
    tables = [table for table, _, _ in bands]
    width = tables[0].shape[1]
    first = state.get("word_emb.emb_projs.0")
    hidden_size = first.shape[0] if first else width
    factor = width // max(1, tables[1].shape[1]) if len(tables) > 1 else 1
    if len(tables) == 1 and first and width == hidden_size:
        # any factor but 1 gives the only band a projection
        factor = 2
    projections: list[Piece] = []
    # bands of one width share their projection
    for number in range((len(tables) if factor > 1 else 1) if first else 0):
        # NVIDIA's softmax has all of them, whichever it uses
        state.unite(f"crit.shared_out_projs.{number}", f"word_emb.emb_projs.{number}")
        projections.append(state.take_piece(f"word_emb.emb_projs.{number}"))

    weights: Pieces = {}
    tied = True
    for band, (table, output, bias) in enumerate(bands):
        head = f"lm_head.tails.{band - 1}." if band else "lm_head."
        weights |= {f"model.embed_tokens.{band}.table": table, f"{head}{'table' if band else 'words'}": output}
        weights[f"{head}bias"] = bias
        tied = tied and torch.equal(table.tensor, output.tensor)
        if projections:
            embedding = projections[band if factor > 1 else 0]
            weights[f"model.embed_tokens.{f'{band}.' if factor > 1 else ''}projection"] = embedding
            projection = state.pop(f"crit.out_projs.{band}", embedding)
            weights[f"{head}projection"] = projection
            # the first one is never tied
            tied = tied and (not band or torch.equal(projection.tensor, embedding.tensor))
    if len(bands) > 1:
        weights["lm_head.band_words"] = state.take_piece("crit.cluster_weight")
        weights["lm_head.band_bias"] = state.take_piece("crit.cluster_bias")
    return weights, {
        "vocab_size": sum(table.shape[0] for table in tables),
        "hidden_size": hidden_size,
        "embedding_size": width,
        "adaptive_cutoffs": [*accumulate(table.shape[0] for table in tables[:-1])] or None,
        "adaptive_factor": factor,
        "tie_word_embeddings": tied,
    }


def from_transformer_xl(
    weights: Mapping[str, torch.Tensor], settings: Mapping[str, Any], sublayer_order: str | None = None
) -> tuple[PARTransformerXLForCausalLM, Pieces]:
    """Convert Transformer-XL as its authors, NVIDIA or transformers 4 saved it.

    Sizes are read from the weights; `settings`, by the authors' names, tell the rest: `cutoffs`, `pre_lnorm`,
    `mem_len`, `same_length`, `clamp_len`, `dropout` and `dropatt`. What they do not tell is as in the original, and
    memory as long as in PAR. A text begins without memory, as in the original; in transformers it began with zeros,
    which took part in attention, and which `memory=` can bring.

    Raises:
        ValueError: a key that is missing or that this model has no place for, an order or cutoffs that do not fit,
            another kind of attention, an extended context, or heads that are together not as wide as the model.
    """
    given = {name: settings.get(name) or 0 for name in ONLY}
    refuse_others(given, ONLY, "Transformer-XL")
    state = State(weights, rename)
    biases = {"content_bias": take_biases(state, "r_w_bias"), "position_bias": take_biases(state, "r_r_bias")}
    others, fields = take_words(state, settings.get("cutoffs", []))
    if settings.get("model_type") == MODEL_TYPE and fields["adaptive_cutoffs"]:
        # in the authors' code, the rarest band comes first
        others |= {name: others[name].reverse() for name in ("lm_head.band_words", "lm_head.band_bias")}
    order, sublayers = take_sublayers(state)
    state.refuse_rest("the Transformer-XL")
    attentions = sublayers["s"]
    is_shared = all(len(found) == 1 for found in biases.values())
    for name, found in biases.items():
        if is_shared:
            others[f"model.positions.{name}"] = found[0]
            continue
        # a vector that the layers of the source share is given to each layer here
        found = found * len(attentions) if len(found) == 1 else found
        if len(found) != len(attentions):
            raise ValueError(f"{len(found)} vectors do not fit {len(attentions)} attention sublayers; is it complete?")
        for attention, piece in zip(attentions, found, strict=True):
            attention[f"mixer.{name}"] = piece
    heads, head_size = biases["content_bias"][0].shape
    if heads * head_size != fields["hidden_size"]:
        raise ValueError(
            f"n_head={heads} of d_head={head_size} cannot be converted; together they must be as wide as the model, "
            f"d_model={fields['hidden_size']}"
        )
    if sublayers["f"]:
        fields["intermediate_size"] = sublayers["f"][0]["mixer.fc1.weight"].shape[0]
    clamp_length = settings.get("clamp_len", -1)
    dropouts = dict.fromkeys(("dropout", "activation_dropout"), settings.get("dropout", 0.1))
    told = {ours: settings[theirs] for theirs, ours in TOLD.items() if theirs in settings}
    config = PARTransformerXLConfig(
        sublayer_order=sublayer_order or order,
        num_attention_heads=heads,
        norm_position="pre" if settings.get("pre_lnorm") else "post",
        clamp_length=clamp_length if clamp_length > 0 else None,
        share_position_biases=is_shared,
        **dropouts,
        **fields,
        **told,
    )
    return assemble(PARTransformerXLForCausalLM, config, sublayers, others)
