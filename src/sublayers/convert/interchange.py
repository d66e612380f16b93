"""Llamas of which some layers lack attention or feed-forward: how others write them, read and written here."""

import copy
import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedModel

from sublayers.configuration.sublayer_order import expand
from sublayers.convert.llama import SKIPPABLE, from_llama, leave_out_skipped, skipped
from sublayers.convert.weights import SAME, Weights, are_weights, load_checkpoint, refuse_others
from sublayers.hub.loading import never_running_code
from sublayers.modeling.modeling_sandwich_lm import SandwichLMForCausalLM

# the letters of a whole layer, in the order of SKIPPABLE
WHOLE = "sf"
# by our letters, Nemotron-NAS's names for a part of a block and for its size
BLOCK_PARTS = {"s": ("attention", "n_heads_in_group"), "f": ("ffn", "intermediate_size")}
# it rounds the width of feed-forward blocks up to a multiple of this
MULTIPLE = 256
# the file of ExecuTorch's settings, and that of its weights
PARAMS, CHECKPOINT = "params.json", "consolidated.00.pth"
# its names for fields of Llama
FIELDS = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
FIELDS |= {"num_key_value_heads": "n_kv_heads", "head_dim": "head_dim", "rms_norm_eps": "norm_eps"}
# fields with the only values that a Llama can have, where they are not false
NEUTRAL: dict[str, Any] = {
    "attention_type": "mha",
    "norm_type": "rmsnorm",
    "act_fn": "silu",
    "model_architecture": "LlamaForCausalLM",
}
NEUTRAL |= dict.fromkeys(("partial_rotary_factor", "embedding_scale_factor"), 1.0)
NEUTRAL |= dict.fromkeys(("apply_embedding", "apply_output", "use_ffn_norm"), True)
# other fields that are read here, or change no outputs
KNOWN = {*FIELDS.values(), "hidden_dim", "vocab_size", "rope_theta", "use_hf_rope", "layer_types", "mlp_type"}
KNOWN |= {"multiple_of", "ffn_dim_multiplier", "max_batch_size", "max_seq_len", "max_context_len", "device"}
KNOWN |= {"use_kv_cache", "use_sdpa_with_kv_cache_op", "generate_full_logits", "enable_dynamic_shape"}
KNOWN |= {"rope_freq_base", "rope_scale_factor", "high_freq_factor", "bos_idx", "eos_idx", "bos_count", "eos_count"}
# its names for Llama's modules
MODULES = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output"}
IN_LAYERS = {f"self_attn.{name}_proj": f"attention.w{name}" for name in "qkvo"}
IN_LAYERS |= {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
IN_LAYERS |= {f"mlp.{name}_proj": f"feed_forward.w{i}" for i, name in enumerate(("gate", "down", "up"), 1)}


def per_layer_config(layers: list[str]) -> dict[str, Any]:
    """Say as transformers does what layers of these letters skip."""
    skips = [[part for part, letter in zip(SKIPPABLE, WHOLE, strict=True) if letter not in layer] for layer in layers]
    return {str(number): {"skip": skip} for number, skip in enumerate(skips) if skip}


def parts_skipped(config: dict[str, Any]) -> list[list[str]]:
    """Say what each layer of a Llama with these settings skips."""
    skips = skipped(config)
    return [skips.get(number, []) for number in range(config["num_hidden_layers"])]


def from_block_configs(config: dict[str, Any]) -> dict[str, Any]:
    """Turn the settings of a Nemotron-NAS into those of a Llama.

    Raises:
        ValueError: blocks of several sizes, or with other parts than a Llama's.
    """
    layers: list[str] = []
    sizes: dict[str, set[int]] = {size: set() for _, size in BLOCK_PARTS.values()}
    for block in config["block_configs"]:
        layers.append("".join(letter for letter in WHOLE if not block[BLOCK_PARTS[letter][0]].get("no_op")))
        for name, size in (BLOCK_PARTS[letter] for letter in layers[-1]):
            part = {key: value for key, value in block[name].items() if value}
            if multiplier := part.pop("ffn_mult", None):
                part[size] = -(-int(2 * multiplier * config["hidden_size"] / 3) // MULTIPLE) * MULTIPLE
            if part.pop("hidden_act", config["hidden_act"]) != config["hidden_act"] or {*part} != {size}:
                raise ValueError(
                    f"layer {len(layers) - 1} with {name}={block[name]} cannot be converted; only attention without a "
                    "window and feed-forward blocks can, and nothing in their place"
                )
            sizes[size].add(part[size])
    if several := {name: sorted(values) for name, values in sizes.items() if len(values) > 1}:
        raise ValueError(f"layers with {several} cannot be converted; all must have one size")
    group, width = (next(iter(values), 1) for values in sizes.values())
    return {
        **{name: value for name, value in config.items() if name not in ("block_configs", "auto_map")},
        **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "intermediate_size": width},
        "num_key_value_heads": config["num_attention_heads"] // group,
        "per_layer_config": per_layer_config(layers),
    }


def to_block_configs(config: dict[str, Any]) -> dict[str, Any]:
    """Turn the settings of a Llama into those of a Nemotron-NAS.

    Raises:
        ValueError: sizes that it cannot tell.
    """
    heads, hidden_size, width = (config[name] for name in ("num_attention_heads", "hidden_size", "intermediate_size"))
    refuse_others(config, {"head_dim": hidden_size // heads}, "Nemotron-NAS")
    if width % MULTIPLE:
        raise ValueError(f"intermediate_size={width} cannot be written; only multiples of {MULTIPLE} can")
    values = {"attention": ("n_heads_in_group", heads // config["num_key_value_heads"])}
    values["ffn"] = ("ffn_mult", 3 * width / (2 * hidden_size))
    skips = parts_skipped(config)
    blocks = [
        {
            name: {"no_op": part in skip, "replace_with_linear": False, size: None if part in skip else value}
            for part, (name, (size, value)) in zip(SKIPPABLE, values.items(), strict=True)
        }
        for skip in skips
    ]
    rope = {name: value for name, value in config["rope_parameters"].items() if name != "rope_theta"}
    return {
        **{name: value for name, value in config.items() if name not in ("per_layer_config", "rope_parameters")},
        **{"model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"], "block_configs": blocks},
        **{"intermediate_size": None, "num_key_value_heads": None},
        "rope_theta": config["rope_parameters"]["rope_theta"],
        "rope_scaling": None if rope["rope_type"] == "default" else rope,
    }


def from_params(path: Path) -> dict[str, Any]:
    """Turn ExecuTorch's settings into those of a Llama, but for two sizes that its weights tell.

    Raises:
        ValueError: a file that is damaged, or parts that no Llama has.
    """
    with never_running_code(path):
        params = {**json.loads(path.read_text(encoding="utf-8"))}
    others = {name: value for name, value in params.items() if value and name not in KNOWN}
    refuse_others(others, dict.fromkeys(others) | NEUTRAL, "ExecuTorch's Llama")
    number = params["n_layers"]
    types = params.get("layer_types") or ["full_attention"] * number
    if foreign := {*types} - {"full_attention", "skip_attention"}:
        raise ValueError(f"layers of {', '.join(sorted(foreign))} cannot be converted")
    # those that are not named have one
    blocks = [*(params.get("mlp_type") or []), *["default"] * number]
    layers = [
        "s" * (kind != "skip_attention") + "f" * (block.lower() != "skip")
        for kind, block in zip(types, blocks[:number], strict=True)
    ]
    theta = params.get("rope_theta") or params.get("rope_freq_base") or 10000.0
    return {
        **{name: params[theirs] for name, theirs in FIELDS.items() if theirs in params},
        **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "per_layer_config": per_layer_config(layers)},
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "rms_norm_eps": params.get("norm_eps", 1e-5),
    }


def names_of(number: int) -> dict[str, str]:
    """Give ExecuTorch's names of the weights of a Llama with so many layers, by transformers' names."""
    modules = MODULES | {
        f"model.layers.{layer}.{name}": f"layers.{layer}.{theirs}"
        for layer in range(number)
        for name, theirs in IN_LAYERS.items()
    }
    return {f"{name}.weight": f"{theirs}.weight" for name, theirs in modules.items()}


def load_params(source: Path, config: dict[str, Any], **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load ExecuTorch's Llama from a folder with these settings, and say what was missing or unexpected there.

    Raises:
        ValueError: not one file of weights, or one that holds something else.
    """
    files = sorted(source.glob("*.pth"))
    checkpoint = load_checkpoint(files[0]) if len(files) == 1 else None
    if not are_weights(checkpoint):
        raise ValueError(f"{source} has {len(files)} files .pth; give a folder with one, which holds weights only")
    names = names_of(config["num_hidden_layers"])
    weights = {name: checkpoint.pop(theirs) for name, theirs in names.items() if theirs in checkpoint}
    if not json.loads((source / PARAMS).read_text(encoding="utf-8")).get("use_hf_rope"):
        for name in weights:
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weights[name] = halves(weights[name], config["hidden_size"] // config["num_attention_heads"])
    table, output = (weights[f"{name}.weight"] for name in ("model.embed_tokens", "lm_head"))
    width = next((tensor.shape[0] for name, tensor in weights.items() if name.endswith("up_proj.weight")), 1)
    told = {"vocab_size": len(table), "intermediate_size": width, "tie_word_embeddings": torch.equal(table, output)}
    llama = LlamaConfig.from_dict(config | told)
    load: Any = LlamaForCausalLM.from_pretrained
    return load(None, config=llama, state_dict=weights | checkpoint, **options)


def halves(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Bring the rows of each head, which turn in pairs of neighbours, in the order in which its halves turn."""
    return weight.view(-1, head_dim // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def to_llama(model: PreTrainedModel) -> tuple[LlamaForCausalLM, Weights, set[str]]:
    """Make a Llama of a language model: each `s` begins a layer, with the `f` behind it, and other `f` have their own.

    Returns:
        The Llama without what its layers skip, all weights of a whole one, in which that is zero, and the names of
        those that are not skipped.

    Raises:
        ValueError: a model of another class, or with a part that no Llama has.
    """
    ours: Any = model.config
    order = expand(ours.sublayer_order) if isinstance(model, SandwichLMForCausalLM) else ""
    if not order or {*order} - {*WHOLE}:
        raise ValueError(
            f"{type(model).__name__} of order {getattr(ours, 'sublayer_order', None)!r} cannot be written; only "
            "SandwichLMForCausalLM with sublayers s and f can"
        )
    layers = re.findall("sf?|f", order)
    same = (*SAME, "num_key_value_heads", "hidden_act", "head_dim", "attention_bias", "mlp_bias", "use_cache")
    told = {name: getattr(ours, name) for name in same}
    told |= {"num_hidden_layers": len(layers), "per_layer_config": per_layer_config(layers)}
    told |= {"rms_norm_eps": ours.layer_norm_eps, "rope_parameters": ours.rope_parameters}
    llama: Any = LlamaForCausalLM(LlamaConfig.from_dict(told))
    llama.to(model.dtype)
    weights = llama.state_dict()
    leave_out_skipped(llama)
    twin, pieces = from_llama(llama)
    own = {field.name for field in fields(ours)} - {
        *PreTrainedConfig.__dataclass_fields__,
        "auto_map",
        "kept_sublayers",
    }
    for name in sorted(name for name in own if "dropout" not in name):
        if (value := getattr(ours, name)) != (possible := getattr(twin.config, name)):
            raise ValueError(f"{name}={value!r} cannot be written; only SandwichLM with {name}={possible!r} can")
    with torch.no_grad():
        for weight in weights.values():
            weight.zero_()
        for name, tensor in model.state_dict().items():
            pieces[name].tensor.copy_(tensor)
    llama.generation_config = copy.deepcopy(model.generation_config)
    return llama, weights, {name for piece in pieces.values() for name in piece.names}


def write_transformers(llama: LlamaForCausalLM, weights: Weights, kept: set[str], folder: Path) -> None:
    """Write what transformers opens; its Llama (5.23) runs what layers skip, too, whose weights of 0 add nothing."""
    llama.save_pretrained(folder, state_dict=weights)


def write_nemotron_nas(llama: LlamaForCausalLM, weights: Weights, kept: set[str], folder: Path) -> None:
    """Write what code for Nemotron-NAS opens. Raises what `to_block_configs` raises."""
    llama.save_pretrained(folder, state_dict={name: weights[name] for name in kept})
    config = folder / "config.json"
    settings = to_block_configs(json.loads(config.read_text(encoding="utf-8")))
    config.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def write_executorch(llama: LlamaForCausalLM, weights: Weights, kept: set[str], folder: Path) -> None:
    """Write what ExecuTorch's export of Llama takes as checkpoint and params.

    Raises:
        ValueError: an activation, biases or scaled positions, which are not written.
    """
    config = llama.config.to_dict()
    only = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    refuse_others(config, only, "ExecuTorch")
    refuse_others(config["rope_parameters"], {"rope_type": "default"}, "ExecuTorch")
    skips = parts_skipped(config)
    params = {theirs: config[name] for name, theirs in FIELDS.items()}
    params |= {"hidden_dim": config["intermediate_size"], "vocab_size": config["vocab_size"]}
    params |= {"rope_theta": config["rope_parameters"]["rope_theta"], "use_hf_rope": True}
    params["layer_types"] = ["skip_attention" if "attention" in skip else "full_attention" for skip in skips]
    params["mlp_type"] = ["skip" if "mlp" in skip else "default" for skip in skips]
    (folder / PARAMS).write_text(json.dumps(params, indent=2) + "\n", encoding="utf-8")
    names = names_of(len(skips))
    torch.save({names[name]: tensor.clone() for name, tensor in weights.items()}, folder / CHECKPOINT)


# how a Llama is written, by the name of the form
FORMS: dict[str, Callable[[LlamaForCausalLM, Weights, set[str], Path], None]] = {
    "transformers": write_transformers,
    "nemotron-nas": write_nemotron_nas,
    "executorch": write_executorch,
}
