"""Conversions into the encoder-decoders: fairseq's Transformer and Macaron, transformers' BART and its relatives."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from transformers.activations import ACT2FN

from sublayers.convert.convolutions import read_convolutions, take_convolution
from sublayers.convert.weights import Model, Pieces, State, agreed, fill, place, refuse_others
from sublayers.modeling.modeling_macaron_seq2seq import MacaronSeq2SeqForConditionalGeneration
from sublayers.modeling.modeling_reordered_seq2seq import ReorderedSeq2SeqForConditionalGeneration
from sublayers.modeling.modeling_sandwich_seq2seq import SandwichSeq2SeqForConditionalGeneration

SIDES = ("encoder", "decoder")
ATTENTION = {
    ".q_proj": "mixer.q_proj",
    ".k_proj": "mixer.k_proj",
    ".v_proj": "mixer.v_proj",
    ".out_proj": "mixer.o_proj",
    "_layer_norm": "norm",
}
# the sublayers of a layer; Macaron's also begins with a feed-forward one
LAYER = {
    "s": {f"self_attn{theirs}": ours for theirs, ours in ATTENTION.items()},
    "c": {f"encoder_attn{theirs}": ours for theirs, ours in ATTENTION.items()},
    "f": {"fc1": "mixer.fc1", "fc2": "mixer.fc2", "final_layer_norm": "norm"},
}
MACARON = {"macaron_fc1": "mixer.fc1", "macaron_fc2": "mixer.fc2", "macaron_layer_norm": "norm"}
# options that change a fairseq model's function but not the names or shapes of its weights
UNKNOWN_HERE = ("no_token_positional_embeddings", "layer_wise_attention", "cross_self_attention")
# fields that transformers' models have by the same name
SAME = ("scale_embedding", "pad_token_id", "eos_token_id", "decoder_start_token_id")
# fairseq's defaults of these options
DROPOUTS = {"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0}
LENGTHS = ("max_source_positions", "max_target_positions", "max_positions")


def upgrade(weights: Mapping[str, torch.Tensor]) -> State:
    """Give fairseq's weights the names that they have since 0.10, which are also those of transformers' BART."""
    state, upgraded = State(weights), State({})
    for name, piece in state.items():
        if name == "decoder.embed_out":
            name = "decoder.output_projection.weight"
        # the encoder's norms had numbers up to 0.6, attention one matrix for three projections
        for number, norm in enumerate(("self_attn", "final", "macaron")):
            name = name.replace(f".layer_norms.{number}.", f".{norm}_layer_norm.")
        if ".in_proj_" in name:
            parts = zip("qkv", piece.chunk(3), strict=True)
            upgraded |= {name.replace("in_proj_", f"{letter}_proj."): part for letter, part in parts}
        else:
            upgraded[name] = piece
    return upgraded


def has_convolutions(state: State) -> bool:
    """Say whether convolutions stand in the place of self-attention."""
    return "encoder.layers.0.linear1.weight" in state


def take_stack(
    state: State, side: str, layer_order: str, norm_affine: bool = True
) -> tuple[str, dict[str, list[Pieces]]]:
    """Take the layers of the encoder or the decoder.

    Args:
        state: has fairseq's names.
        side: of `SIDES`.
        layer_order: of each layer, with d for a convolution of either kind.
        norm_affine: whether norms have weights.

    Returns:
        The order of the sublayers, and their weights by kind.

    Raises:
        ValueError: a weight that is missing.
    """
    order, number = "", 0
    sublayers: dict[str, list[Pieces]] = {letter: [] for letter in "dlscf"}
    while any(key.startswith(layer := f"{side}.layers.{number}.") for key in state):
        for part, letter in enumerate(layer_order):
            if letter == "d":
                letter, pieces = take_convolution(state, side, layer)
            else:
                names = MACARON if (part, letter) == (0, "f") else LAYER[letter]
                kept = {theirs: ours for theirs, ours in names.items() if norm_affine or ours != "norm"}
                pieces = state.take_all(kept, layer)
            sublayers[letter].append(pieces)
            order += letter
        number += 1
    return order, sublayers


class Parts(NamedTuple):
    """What weights tell of a model: its stacks, its other weights, and fields of its configuration.

    A stack is the order of its sublayers, and their weights by kind.
    """

    stacks: list[tuple[str, dict[str, list[Pieces]]]]
    others: Pieces
    fields: dict[str, Any]


def take_parts(state: State, position_offset: int = 2) -> Parts:
    """Take all weights, which have fairseq's names.

    Raises:
        ValueError: a name that is missing or without a place, or feed-forward sublayers of several widths.
    """
    first = "f" if any(".macaron_fc1." in name for name in state) else ""
    first += "d" if has_convolutions(state) else "s"
    stacks = [take_stack(state, side, f"{first}{rest}") for side, rest in zip(SIDES, ("f", "cf"), strict=True)]
    widths = {pieces["mixer.fc1.bias"].shape[0] for _, sublayers in stacks for pieces in sublayers["f"]}
    if len(widths) > 1:
        raise ValueError(f"feed-forward sublayers of widths {sorted(widths)} cannot be converted; they must agree")
    source, target = (state.take_piece(f"{side}.embed_tokens.weight") for side in SIDES)
    output = state.pop("decoder.output_projection.weight", target)
    others = {
        "model.encoder.embed_tokens.weight": source,
        "model.decoder.embed_tokens.weight": target,
        "lm_head.weight": output,
    }
    fields: dict[str, Any] = {}
    if output_bias := "decoder.output_projection.bias" in state:
        others["lm_head.bias"] = state.pop("decoder.output_projection.bias")
    if "encoder.embed_positions.weight" in state:
        for side in SIDES:
            positions = state.take_piece(f"{side}.embed_positions.weight")
            others[f"model.{side}.embed_positions.weight"] = positions
        length = positions.shape[0] - position_offset
        fields |= {"position_embedding_type": "learned", "max_position_embeddings": length}
    if embedding_norm := "encoder.layernorm_embedding.weight" in state:
        others |= state.take_all({f"{side}.layernorm_embedding": f"model.{side}.embed_norm" for side in SIDES})
    if final_norm := "encoder.layer_norm.weight" in state:
        others |= state.take_all({f"{side}.layer_norm": f"model.{side}.norm" for side in SIDES})
    state.refuse_rest("an encoder-decoder")
    source_size, (target_size, hidden_size) = source.shape[0], target.shape
    fields |= {
        "vocab_size": target_size,
        "encoder_vocab_size": None if source_size == target_size else source_size,
        "hidden_size": hidden_size,
        "intermediate_size": widths.pop(),
        "final_norm": final_norm,
        "embedding_norm": embedding_norm,
        "position_offset": position_offset,
        "share_encoder_decoder_embeddings": torch.equal(source.tensor, target.tensor),
        "tie_word_embeddings": torch.equal(target.tensor, output.tensor),
        "output_bias": output_bias,
    }
    return Parts(stacks, others, fields)


def put_together(model_class: type[Model], parts: Parts, **fields: Any) -> tuple[Model, Pieces]:
    """Build a model from its parts, with `fields` of its configuration that weights do not tell.

    Raises:
        ValueError: an order that does not fit.
    """
    # fairseq and BART norm before sublayers exactly where a norm ends the stack
    norm_position = "pre" if parts.fields["final_norm"] else "post"
    config_class: Any = model_class.config_class
    config = config_class(**{"norm_position": norm_position} | fields | parts.fields)
    pieces = parts.others
    for side, (order, *_), (_, sublayers) in zip(SIDES, config.stack_orders, parts.stacks, strict=True):
        pieces = pieces | place(str(order), sublayers, f"model.{side}.layers")
    return fill(model_class, config, pieces)


def build(
    state: State, position_offset: int = 2, **fields: Any
) -> tuple[ReorderedSeq2SeqForConditionalGeneration, Pieces]:
    """Build a Transformer, a Macaron or their like with convolutions, whose orders may be among the fields.

    Raises what its halves and `read_convolutions` raise.
    """
    family: type[ReorderedSeq2SeqForConditionalGeneration] = SandwichSeq2SeqForConditionalGeneration
    parts = take_parts(state, position_offset)
    orders = {f"{side}_sublayer_order": order for side, (order, _) in zip(SIDES, parts.stacks, strict=True)}
    if parts.stacks[0][0].startswith("f"):
        family = MacaronSeq2SeqForConditionalGeneration
        # the first half step has relu, whatever the other one has
        fields["pre_attention_act"] = "relu"
    return put_together(
        family, parts, **orders | read_convolutions(parts.stacks, fields["num_attention_heads"]) | fields
    )


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Read those fields of a configuration that fairseq's options tell; see `from_fairseq_seq2seq`.

    Raises:
        ValueError: options in which encoder and decoder differ or that this model does not have.
    """
    for name in UNKNOWN_HERE:
        if options.get(name):
            raise ValueError(f"fairseq's option {name}={options[name]} cannot be converted; only models without it can")
    fields: dict[str, Any] = {}
    if lengths := [options[name] or 1024 for name in LENGTHS if name in options]:
        fields["max_position_embeddings"] = max(lengths)
    # the Macaron authors have another name for it
    if act := options.get("activation_fn") or options.get("act_fn"):
        if act not in ACT2FN:
            raise ValueError(f"fairseq's activation {act!r} cannot be converted; those of transformers can")
        fields["hidden_act"] = act
    if "no_scale_embedding" in options:
        fields["scale_embedding"] = not options["no_scale_embedding"]
    if (normalize_before := agreed(options, "normalize_before")) is not None:
        fields["norm_position"] = "pre" if normalize_before else "post"
    if options.keys() & {*DROPOUTS, "relu_dropout"}:
        fields |= {name: options.get(name, default) or 0.0 for name, default in DROPOUTS.items()}
        # the name of the field up to fairseq 0.7
        fields["activation_dropout"] = fields["activation_dropout"] or options.get("relu_dropout", 0.0)
    return fields


def from_fairseq_seq2seq(
    weights: Mapping[str, torch.Tensor],
    num_attention_heads: int,
    options: Mapping[str, Any] = {},
    **orders: str,
) -> tuple[ReorderedSeq2SeqForConditionalGeneration, Pieces]:
    """Convert fairseq's Transformer, Macaron, LightConv or DynamicConv (0.6 to 0.12), in its own or another order.

    `options` are fairseq's, flat as its command line's; without them the activation is ReLU, embeddings are scaled,
    and sinusoids reach 1024 tokens. `orders` are `encoder_sublayer_order` and `decoder_sublayer_order`. Attention and
    convolutions have one dropout here; it is that of the kernels. Dropout before convolutions, their
    `input_dropout`, is left out.

    Raises:
        ValueError: a key that is missing or that this model has no place for, an order that does not fit, kernels
            without a softmax, or options in which encoder and decoder differ or that this model does not have.
    """
    state, fields = upgrade(weights), read_options(options) | orders
    if has_convolutions(state):
        refuse_others(options, {"weight_softmax": True}, "fairseq's LightConv")
        fields |= {"attention_dropout": options["weight_dropout"]} if "weight_dropout" in options else {}
    return build(state, num_attention_heads=num_attention_heads, **fields)


def from_bart(source: Any, **orders: str) -> tuple[ReorderedSeq2SeqForConditionalGeneration, Pieces]:
    """Convert transformers' BART, mBART, Marian or Pegasus; in the interleaved order, the default, outputs are equal.

    The sinusoids of Marian and Pegasus have other frequencies than fairseq's, so they become learned positions. Padding
    is not counted as a position here, so a source that is padded on the left reads differently from theirs, who count
    it. mBART starts a target with the last token of its labels; here all start with `decoder_start_token_id`, whose
    vector learns here even if it is that of padding. LayerDrop is left out.

    Raises:
        ValueError: encoder and decoder have other heads or widths, or an order does not fit.
    """
    old = source.config
    told = old.to_dict()
    state = State(source.state_dict(), lambda name: name.removeprefix("model."))
    # encoder and decoder hold what they share
    state.unite("shared.weight", "encoder.embed_tokens.weight")
    state["decoder.output_projection.weight"] = state.pop("lm_head.weight")
    # BART's tables begin with two rows that it never reads
    offset = state["encoder.embed_positions.weight"].shape[0] - old.max_position_embeddings
    bias = state.pop("final_logits_bias")
    if bias.tensor.any():
        state["decoder.output_projection.bias"] = bias.reshape(-1)
    model, pieces = build(
        state,
        position_offset=offset,
        num_attention_heads=agreed(told, "attention_heads"),
        hidden_act=old.activation_function,
        initializer_range=old.init_std,
        # Pegasus has no token for the beginning
        bos_token_id=told.get("bos_token_id"),
        **{name: told[name] for name in (*DROPOUTS, *SAME)},
        **orders,
    )
    model.generation_config = copy.deepcopy(source.generation_config)
    return model, pieces
