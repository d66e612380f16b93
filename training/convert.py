"""`sublayers convert`: other implementations' checkpoints as ours, in the interleaved or any other order."""

import argparse
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

from sublayers.configuration.configuration_sandwich_lm import SandwichLMConfig
from sublayers.configuration.sublayer_order import counts, expand, interleaved
from sublayers.modeling.modeling_sandwich_lm import SandwichLMForCausalLM
from sublayers.training.cli import refuse_to_overwrite

Weights = dict[str, torch.Tensor]


def linear(name: str, weight: torch.Tensor, bias: torch.Tensor) -> Weights:
    """Name a linear map's parameters."""
    return {f"{name}.weight": weight, f"{name}.bias": bias}


def assemble(config: SandwichLMConfig, sublayers: dict[str, list[Weights]], others: Weights) -> SandwichLMForCausalLM:
    """Build a model whose i-th sublayer of each kind has the i-th weights of that kind.

    Raises:
        ValueError: the order has more or fewer sublayers of a kind than there are weights.
    """
    available = {letter: len(weights) for letter, weights in sublayers.items()}
    wanted = counts(config.sublayer_order)
    if any(wanted[letter] != number for letter, number in available.items()):
        found = ", ".join(f"{number} {letter}" for letter, number in available.items())
        raise ValueError(f"the order {config.sublayer_order!r} does not fit a checkpoint with {found}")
    remaining = {letter: iter(weights) for letter, weights in sublayers.items()}
    state = {f"model.{name}": tensor for name, tensor in others.items()}
    for i, letter in enumerate(expand(config.sublayer_order)):
        state |= {f"model.layers.{i}.{name}": tensor for name, tensor in next(remaining[letter]).items()}
    state["lm_head.weight"] = others["embed_tokens.weight"]
    model = SandwichLMForCausalLM(config).eval()
    model.load_state_dict({name: tensor.clone() for name, tensor in state.items()})
    return model


def from_gpt2(source: GPT2LMHeadModel, sublayer_order: str | None = None) -> SandwichLMForCausalLM:
    """Convert transformers' GPT-2; in the interleaved order, the default, the outputs are equal.

    Raises:
        ValueError: an order with other numbers of sublayers than the checkpoint, or a variant of GPT-2 that scales its
            attention differently.
    """
    old = source.config
    if not old.scale_attn_weights or old.scale_attn_by_inverse_layer_idx or old.add_cross_attention:
        raise ValueError("only GPT-2 with plain scaled self-attention can be converted")
    config = SandwichLMConfig(
        vocab_size=old.vocab_size,
        sublayer_order=sublayer_order or interleaved(old.n_layer),
        hidden_size=old.n_embd,
        intermediate_size=old.n_inner or 4 * old.n_embd,
        num_attention_heads=old.n_head,
        max_position_embeddings=old.n_positions,
        # the same function, computed in one kernel
        hidden_act="gelu_pytorch_tanh" if old.activation_function == "gelu_new" else old.activation_function,
        dropout=old.resid_pdrop,
        attention_dropout=old.attn_pdrop,
        activation_dropout=0.0,
        final_norm=True,
        position_embedding_type="learned",
        scale_embedding=False,
        layer_norm_eps=old.layer_norm_epsilon,
        initializer_range=old.initializer_range,
        pad_token_id=old.pad_token_id,
        bos_token_id=old.bos_token_id,
        eos_token_id=old.eos_token_id,
    )
    state = source.transformer.state_dict()

    def take(old: str, new: str) -> Weights:
        # GPT-2 keeps its matrices transposed
        return linear(new, state[f"{old}.weight"].transpose(0, -1), state[f"{old}.bias"])

    sublayers: dict[str, list[Weights]] = {"s": [], "f": []}
    for i in range(old.n_layer):
        # the three projections lie side by side
        weights, biases = (state[f"h.{i}.attn.c_attn.{kind}"].chunk(3, dim=-1) for kind in ("weight", "bias"))
        attention = take(f"h.{i}.ln_1", "norm") | take(f"h.{i}.attn.c_proj", "mixer.o_proj")
        for name, weight, bias in zip(("q_proj", "k_proj", "v_proj"), weights, biases, strict=True):
            attention |= linear(f"mixer.{name}", weight.T, bias)
        sublayers["s"].append(attention)
        feed_forward = take(f"h.{i}.mlp.c_fc", "mixer.fc1") | take(f"h.{i}.mlp.c_proj", "mixer.fc2")
        sublayers["f"].append(take(f"h.{i}.ln_2", "norm") | feed_forward)
    others = {"embed_tokens.weight": state["wte.weight"], "embed_positions.weight": state["wpe.weight"]}
    return assemble(config, sublayers, others | take("ln_f", "norm"))


def from_fairseq_lm(
    state: Mapping[str, torch.Tensor],
    num_attention_heads: int,
    max_position_embeddings: int = 3072,
    sublayer_order: str | None = None,
) -> SandwichLMForCausalLM:
    """Convert fairseq's transformer language model with tied embeddings (0.9 key layout), which is pre-norm with ReLU.

    Raises:
        ValueError: a key that is missing or that this model has no place for, or an order that does not fit.
    """
    # buffers without information
    state = {k: v for k, v in state.items() if not k.endswith(("version", "_float_tensor"))}

    def take(old: str, new: str) -> Weights:
        names = {f"{old}.{kind}": f"{new}.{kind}" for kind in ("weight", "bias")}
        if missing := names.keys() - state.keys():
            raise ValueError(f"the checkpoint has no {sorted(missing)}; is it a fairseq transformer_lm of 0.9?")
        return {new_name: state.pop(old_name) for old_name, new_name in names.items()}

    sublayers: dict[str, list[Weights]] = {"s": [], "f": []}
    embeddings = state.pop("decoder.embed_tokens.weight")
    while any(k.startswith(prefix := f"decoder.layers.{len(sublayers['s'])}.") for k in state):
        attention = take(f"{prefix}self_attn_layer_norm", "norm")
        for name in ("q_proj", "k_proj", "v_proj"):
            attention |= take(f"{prefix}self_attn.{name}", f"mixer.{name}")
        sublayers["s"].append(attention | take(f"{prefix}self_attn.out_proj", "mixer.o_proj"))
        feed_forward = take(f"{prefix}final_layer_norm", "norm")
        sublayers["f"].append(feed_forward | take(f"{prefix}fc1", "mixer.fc1") | take(f"{prefix}fc2", "mixer.fc2"))
    final_norm = "decoder.layer_norm.weight" in state
    others = {"embed_tokens.weight": embeddings} | (take("decoder.layer_norm", "norm") if final_norm else {})
    if state:
        raise ValueError(f"no place for {sorted(state)} in a language model with tied embeddings")
    config = SandwichLMConfig(
        vocab_size=embeddings.shape[0],
        sublayer_order=sublayer_order or interleaved(len(sublayers["s"])),
        hidden_size=embeddings.shape[1],
        intermediate_size=sublayers["f"][0]["mixer.fc1.weight"].shape[0],
        num_attention_heads=num_attention_heads,
        max_position_embeddings=max_position_embeddings,
        final_norm=final_norm,
        # fairseq's dictionaries begin with bos, pad, eos, and its positions behind the padding index
        position_offset=2,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )
    return assemble(config, sublayers, others)


def load_fairseq(path: Path) -> Weights:
    """Read the weights of a fairseq checkpoint without running what else may be in it.

    Raises:
        ValueError: the file holds objects other than tensors and fairseq's options.
    """
    try:
        # fairseq keeps its options beside the weights as a Namespace, the one class that is allowed in
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)["model"]
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} holds more than weights and would run code to load it; it is not read") from error


def main(argv: list[str] | None = None) -> None:
    """Convert a checkpoint into a new folder.

    Raises:
        FileExistsError: the folder holds files.
        ValueError: a checkpoint that this model has no place for, or a fairseq file without its number of heads.
    """
    parser = argparse.ArgumentParser(prog="sublayers convert", description=__doc__)
    parser.add_argument("source", type=Path, help="a transformers GPT-2 folder, or a fairseq LM (.pt, .safetensors)")
    parser.add_argument("destination", type=Path, help="a new folder")
    parser.add_argument("--sublayer-order", "--sublayer_order", help="default: interleaved, as in the source")
    parser.add_argument("--num-attention-heads", "--num_attention_heads", type=int, help="fairseq files do not tell")
    arguments = parser.parse_args(argv)
    refuse_to_overwrite(arguments.destination)
    if arguments.source.is_dir():
        model = from_gpt2(GPT2LMHeadModel.from_pretrained(arguments.source), arguments.sublayer_order)
    elif arguments.num_attention_heads is None:
        raise ValueError("a fairseq file does not tell its number of heads; pass --num-attention-heads")
    else:
        if arguments.source.suffix == ".safetensors":
            state = load_file(arguments.source)
        else:
            state = load_fairseq(arguments.source)
        model = from_fairseq_lm(state, arguments.num_attention_heads, sublayer_order=arguments.sublayer_order)
    model.save_pretrained(arguments.destination)
    print(f"{arguments.destination}: {model.num_parameters():,} parameters in the order {model.config.sublayer_order}")
