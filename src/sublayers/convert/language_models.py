"""Conversions into SandwichLM: transformers' GPT-2 and fairseq's language models."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
from transformers import GPT2PreTrainedModel, PreTrainedModel

from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.order import interleaved
from sublayers.convert.decoders import assemble_decoder
from sublayers.convert.seq2seq import read_options, take_stack, upgrade
from sublayers.convert.weights import QKV, SAME, Pieces, State, assemble, refuse_others
from sublayers.modeling.modeling_sandwich_lm import SandwichLMForCausalLM

# options that change GPT-2's function, with the only value that is supported here
ONLY = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}


def from_gpt2(source: GPT2PreTrainedModel, sublayer_order: str | None = None) -> tuple[PreTrainedModel, Pieces]:
    """Convert transformers' GPT-2 with its head; in the interleaved order, the default, the outputs are equal.

    Raises:
        ValueError: an order with other numbers of sublayers than the checkpoint, or a part that no model here has.
    """
    old = source.config
    refuse_others(old.to_dict(), ONLY, "gpt2")
    same = {name: getattr(old, name) for name in SAME if name not in ("intermediate_size", "attention_dropout")}
    config = SandwichLMConfig(
        **same,
        sublayer_order=sublayer_order or interleaved(old.n_layer),
        intermediate_size=old.n_inner or 4 * old.n_embd,
        # gelu_pytorch_tanh is the same function in one kernel
        hidden_act="gelu_pytorch_tanh" if old.activation_function == "gelu_new" else old.activation_function,
        dropout=old.resid_pdrop,
        embedding_dropout=old.embd_pdrop,
        attention_dropout=old.attn_pdrop,
        activation_dropout=0.0,
        final_norm=True,
        position_embedding_type="learned",
        scale_embedding=False,
        layer_norm_eps=old.layer_norm_epsilon,
    )
    state = State(source.state_dict(), lambda name: name.removeprefix("transformer."))
    sublayers: dict[str, list[Pieces]] = {"s": [], "f": []}
    for i in range(old.n_layer):
        layer = f"h.{i}."
        # the three projections lie side by side
        projections = state.take_joint(f"{layer}attn.c_attn", QKV, dim=-1)
        attention = state.take_below({"ln_1": "norm", "attn.c_proj": "mixer.o_proj"}, layer) | projections
        names = {"ln_2": "norm", "mlp.c_fc": "mixer.fc1", "mlp.c_proj": "mixer.fc2"}
        for letter, pieces in (("s", attention), ("f", state.take_below(names, layer))):
            # GPT-2 keeps its matrices transposed
            sublayers[letter].append({name: piece.transpose() for name, piece in pieces.items()})
    others = state.take_below({"wte": "model.embed_tokens", "wpe": "model.embed_positions", "ln_f": "model.norm"})
    # the remaining names are those of the head, and equal ours
    return assemble_decoder(source, config, sublayers, others | state)


def take_adaptive(state: State) -> tuple[Pieces, dict[str, Any]]:
    """Take adaptive embeddings and the adaptive softmax: their weights, and the fields of the configuration.

    Weights that are equal are tied. Without `tie_adaptive_weights` the head is a single matrix, and without
    `tie_adaptive_proj` the projections of the softmax lie on their other side.

    Raises:
        ValueError: a weight that is missing.
    """
    weights: Pieces = {}
    sizes: list[int] = []
    # an adaptive embedding has at least two bands
    while (band := len(sizes)) < 2 or f"decoder.embed_tokens.embeddings.{band}.0.weight" in state:
        for number, name in enumerate(("table", "projection")):
            theirs = f"decoder.embed_tokens.embeddings.{band}.{number}.weight"
            weights[f"model.embed_tokens.{band}.{name}"] = state.take_piece(theirs)
        sizes.append(weights[f"model.embed_tokens.{band}.table"].shape[0])
    softmax = "decoder.adaptive_softmax"
    if f"{softmax}.head.weight" in state:
        head = state.take_piece(f"{softmax}.head.weight")
        words, bands = head.cut(0, sizes[0]), head.cut(sizes[0], head.shape[0])
    else:
        words, bands = (state.take_piece(f"{softmax}.head.{kind}_proj.weight") for kind in ("word", "class"))
    tied = torch.equal(words.tensor, weights["model.embed_tokens.0.table"].tensor)
    weights |= {"lm_head.words": words, "lm_head.bands.weight": bands}
    for tail in range(len(sizes) - 1):
        projection, table = (state.take_piece(f"{softmax}.tail.{tail}.{number}.weight") for number in (0, 2))
        source = f"model.embed_tokens.{tail + 1}"
        tied = tied and torch.equal(table.tensor, weights[f"{source}.table"].tensor)
        if not torch.equal(projection.tensor, weights[f"{source}.projection"].tensor):
            projection, tied = projection.transpose(), False
        weights |= {f"lm_head.tails.{tail}.table": table, f"lm_head.tails.{tail}.projection": projection}
    *cutoffs, vocab_size = accumulate(sizes)
    hidden_size, width = (weights[f"model.embed_tokens.{band}.table"].shape[1] for band in (0, 1))
    return weights, {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "adaptive_cutoffs": cutoffs,
        "adaptive_factor": hidden_size // width,
        "tie_word_embeddings": tied,
    }


def from_fairseq_lm(
    weights: Mapping[str, torch.Tensor],
    num_attention_heads: int,
    options: Mapping[str, Any] = {},
    sublayer_order: str | None = None,
) -> tuple[SandwichLMForCausalLM, Pieces]:
    """Convert fairseq's transformer language model (0.6 to 0.12), with one table of embeddings or with adaptive ones.

    `options` are fairseq's, flat as its command line's; without them it is pre-norm with ReLU and scaled embeddings.

    Raises:
        ValueError: a key that is missing or that this model has no place for, an order that does not fit, or options
            that this model does not have.
    """
    if not options.get("max_target_positions") and "tokens_per_sample" in options:
        options = {**options, "max_target_positions": options["tokens_per_sample"]}
    fields = {"max_position_embeddings": 3072} | read_options(options)
    state = upgrade(weights)
    if "decoder.embed_tokens.embeddings.0.0.weight" in state:
        others, embedding = take_adaptive(state)
        if "adaptive_softmax_dropout" in options:
            fields["adaptive_softmax_dropout"] = options["adaptive_softmax_dropout"]
    else:
        table = state.take_piece("decoder.embed_tokens.weight")
        output = state.pop("decoder.output_projection.weight", table)
        others = {"model.embed_tokens.weight": table, "lm_head.weight": output}
        vocab_size, hidden_size = table.shape
        tied = torch.equal(table.tensor, output.tensor)
        embedding = {"vocab_size": vocab_size, "hidden_size": hidden_size, "tie_word_embeddings": tied}
    order, sublayers = take_stack(state, "decoder", "sf")
    final_norm = "decoder.layer_norm.weight" in state
    if final_norm:
        others |= state.take("decoder.layer_norm", "model.norm")
    state.refuse_rest("a language model")
    config = SandwichLMConfig(
        sublayer_order=sublayer_order or order,
        intermediate_size=sublayers["f"][0]["mixer.fc1.weight"].shape[0],
        num_attention_heads=num_attention_heads,
        final_norm=final_norm,
        # fairseq's dictionaries begin with bos, pad, eos, and its positions begin after the padding index
        position_offset=2,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        **fields,
        **embedding,
    )
    return assemble(SandwichLMForCausalLM, config, sublayers, others)
