"""Conversions into SandwichLM: transformers' GPT-2 and fairseq's language models."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
from transformers import GPT2PreTrainedModel, PreTrainedModel

from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.sublayer_order import interleaved
from sublayers.modeling.modeling_sandwich_lm import SandwichLMForCausalLM
from sublayers.training.convert.decoders import assemble_decoder
from sublayers.training.convert.seq2seq import read_options, take_stack, upgrade
from sublayers.training.convert.weights import Pieces, State, assemble

# options that change GPT-2's function, with the only value that is supported here
ONLY = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}


def from_gpt2(source: GPT2PreTrainedModel, sublayer_order: str | None = None) -> tuple[PreTrainedModel, Pieces]:
    """Convert transformers' GPT-2 with its head; in the interleaved order, the default, the outputs are equal.

    Raises:
        ValueError: an order with other numbers of sublayers than the checkpoint, or a part that no model here has.
    """
    old = source.config
    for name, value in ONLY.items():
        if (found := getattr(old, name)) != value:
            raise ValueError(f"{name}={found!r} cannot be converted; only gpt2 with {name}={value!r} can")
    config = SandwichLMConfig(
        vocab_size=old.vocab_size,
        sublayer_order=sublayer_order or interleaved(old.n_layer),
        hidden_size=old.n_embd,
        intermediate_size=old.n_inner or 4 * old.n_embd,
        num_attention_heads=old.n_head,
        max_position_embeddings=old.n_positions,
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
        initializer_range=old.initializer_range,
        tie_word_embeddings=old.tie_word_embeddings,
        pad_token_id=old.pad_token_id,
        bos_token_id=old.bos_token_id,
        eos_token_id=old.eos_token_id,
        id2label=old.id2label,
        label2id=old.label2id,
        problem_type=old.problem_type,
    )
    state = State(source.state_dict(), lambda name: name.removeprefix("transformer."))

    def take(old: str, new: str) -> Pieces:
        # GPT-2 keeps its matrices transposed
        return {name: piece.transpose() for name, piece in state.take(old, new).items()}

    sublayers: dict[str, list[Pieces]] = {"s": [], "f": []}
    for i in range(old.n_layer):
        # the three projections lie side by side
        weights, biases = (state.pop(f"h.{i}.attn.c_attn.{kind}").chunk(3, dim=-1) for kind in ("weight", "bias"))
        attention = take(f"h.{i}.ln_1", "norm") | take(f"h.{i}.attn.c_proj", "mixer.o_proj")
        for name, weight, bias in zip(("q_proj", "k_proj", "v_proj"), weights, biases, strict=True):
            attention |= {f"mixer.{name}.weight": weight.transpose(), f"mixer.{name}.bias": bias}
        sublayers["s"].append(attention)
        feed_forward = take(f"h.{i}.mlp.c_fc", "mixer.fc1") | take(f"h.{i}.mlp.c_proj", "mixer.fc2")
        sublayers["f"].append(take(f"h.{i}.ln_2", "norm") | feed_forward)
    others = {
        "model.embed_tokens.weight": state.pop("wte.weight"),
        "model.embed_positions.weight": state.pop("wpe.weight"),
    }
    others |= take("ln_f", "model.norm")
    # the remaining names are those of the head, and equal ours
    others |= state
    return assemble_decoder(source, config, sublayers, others)


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
    state: Mapping[str, torch.Tensor],
    num_attention_heads: int,
    max_position_embeddings: int = 3072,
    sublayer_order: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[SandwichLMForCausalLM, Pieces]:
    """Convert fairseq's transformer language model (0.6 to 0.12), with one table of embeddings or with adaptive ones.

    `options` are fairseq's, flat as its command line's; without them it is pre-norm with ReLU and scaled embeddings.

    Raises:
        ValueError: a key that is missing or that this model has no place for, an order that does not fit, or options
            that this model does not have.
    """
    options = options or {}
    if not options.get("max_target_positions") and "tokens_per_sample" in options:
        options = {**options, "max_target_positions": options["tokens_per_sample"]}
    fields = {"max_position_embeddings": max_position_embeddings} | read_options(options)
    old = upgrade(state)
    if "decoder.embed_tokens.embeddings.0.0.weight" in old:
        others, embedding = take_adaptive(old)
        if "adaptive_softmax_dropout" in options:
            fields["adaptive_softmax_dropout"] = options["adaptive_softmax_dropout"]
    else:
        table = old.take_piece("decoder.embed_tokens.weight")
        output = old.pop("decoder.output_projection.weight", table)
        others = {"model.embed_tokens.weight": table, "lm_head.weight": output}
        vocab_size, hidden_size = table.shape
        tied = torch.equal(table.tensor, output.tensor)
        embedding = {"vocab_size": vocab_size, "hidden_size": hidden_size, "tie_word_embeddings": tied}
    sublayers = take_stack(old, "decoder")
    final_norm = "decoder.layer_norm.weight" in old
    if final_norm:
        others |= old.take("decoder.layer_norm", "model.norm")
    old.refuse_rest("a language model")
    config = SandwichLMConfig(
        sublayer_order=sublayer_order or interleaved(len(sublayers["s"])),
        intermediate_size=sublayers["f"][0]["mixer.fc1.weight"].shape[0],
        num_attention_heads=num_attention_heads,
        final_norm=final_norm,
        # fairseq's dictionaries begin with bos, pad, eos, and its positions behind the padding index
        position_offset=2,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        **fields,
        **embedding,
    )
    return assemble(SandwichLMForCausalLM(config), sublayers, others)
