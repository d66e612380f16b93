"""Made-up checkpoints of Transformer-XL, as its authors keep them."""

import sys
import types

import torch
from common import randomize
from torch import nn

from sublayers import PARTransformerXLConfig, PARTransformerXLForCausalLM


def transformer_xl(**overrides):
    sizes = {"sublayer_order": "(sf)2", "vocab_size": 61, "hidden_size": 16, "intermediate_size": 24}
    sizes |= {"num_attention_heads": 4, "adaptive_cutoffs": [20, 40], "memory_length": 7}
    return randomize(PARTransformerXLForCausalLM(PARTransformerXLConfig(**sizes | overrides)))


def authors_names(model):
    """A model's weights as its authors keep them."""
    config, body, head = model.config, model.model, model.lm_head
    state = {"r_w_bias": body.positions.content_bias, "r_r_bias": body.positions.position_bias}
    state["pos_emb.inv_freq"] = torch.ones(8)
    for number, layer in enumerate(body.layers):
        mixer, name = layer.mixer, f"layers.{number // 2}." + ("pos_ff" if number % 2 else "dec_attn")
        if number % 2:
            parts = {"CoreNet.0": mixer.fc1, "CoreNet.3": mixer.fc2}
        else:
            parts = {"o_net": mixer.o_proj, "r_net": mixer.r_proj}
            qkv = [getattr(mixer, f"{letter}_proj").weight for letter in "qkv"]
            state[f"{name}.qkv_net.weight"] = torch.cat(qkv)
        for part, module in (parts | {"layer_norm": layer.norm}).items():
            state |= {f"{name}.{part}.{kind}": tensor for kind, tensor in module.state_dict().items()}
    tables, outputs = [band.table for band in body.embed_tokens], [head.words, *(tail.table for tail in head.tails)]
    biases = [head.bias, *(tail.bias for tail in head.tails)]
    if config.adaptive_factor == 1:
        # all words have one table
        tables, outputs, biases = [torch.cat(tables)], [torch.cat(outputs)], [torch.cat(biases)]
    projections = [band.projection for band in body.embed_tokens]
    if body.embed_tokens.projection is not None:
        projections = [body.embed_tokens.projection]
    for number, (table, output, bias) in enumerate(zip(tables, outputs, biases, strict=True)):
        state[f"word_emb.emb_layers.{number}.weight"] = table
        state |= {f"crit.out_layers.{number}.weight": output, f"crit.out_layers.{number}.bias": bias}
    state |= {
        f"word_emb.emb_projs.{i}": projection for i, projection in enumerate(projections) if projection is not None
    }
    for number, part in enumerate([head, *head.tails]):
        if part.projection is not None:
            state[f"crit.out_projs.{number}"] = part.projection
    if head.tails:
        state |= {"crit.cluster_weight": head.band_words, "crit.cluster_bias": head.band_bias}
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def authors_settings(model):
    config = model.config
    settings = {"cutoffs": config.adaptive_cutoffs or [], "pre_lnorm": config.norm_position == "pre", "clamp_len": -1}
    return settings | {
        "mem_len": config.memory_length,
        "same_length": config.same_length,
        "dropout": 0.3,
        "dropatt": 0.2,
    }


KINDS = [
    {},
    {"tie_word_embeddings": False},
    {"adaptive_cutoffs": None},
    {"embedding_size": 8},
    {"embedding_size": 8, "adaptive_cutoffs": None, "tie_word_embeddings": False},
    {"adaptive_factor": 2},
    {"adaptive_factor": 4, "embedding_size": 32, "tie_word_embeddings": False},
    {"adaptive_factor": 2, "adaptive_cutoffs": None},
    {"norm_position": "pre", "same_length": True},
]


def authors_classes(monkeypatch):
    """Stand in for the authors' files: classes of their names, without what they compute."""
    names = {
        "mem_transformer": ["MemTransformerLM", "AdaptiveEmbedding", "PositionalEmbedding", "PositionwiseFF"],
        "proj_adaptive_softmax": ["ProjectedAdaptiveLogSoftmax"],
    }
    names["mem_transformer"] += ["RelPartialLearnableDecoderLayer", "RelPartialLearnableMultiHeadAttn"]
    classes = {}
    for file, kinds in names.items():
        module = types.ModuleType(file)
        for kind in kinds:
            classes[kind] = type(kind, (nn.Module,), {"__module__": file})
            setattr(module, kind, classes[kind])
        monkeypatch.setitem(sys.modules, file, module)
    return types.SimpleNamespace(**classes)


def authors_module(model, classes, settings):
    """The module with a model's weights that the authors save as a whole."""
    state, root, sizes = authors_names(model), classes.MemTransformerLM(), model.config
    for name in ("mem_len", "same_length", "clamp_len"):
        setattr(root, name, settings[name])
    root.attn_type, root.ext_len, root.n_token = 0, 0, sizes.vocab_size
    root.drop, root.word_emb, root.layers = (
        nn.Dropout(settings["dropout"]),
        classes.AdaptiveEmbedding(),
        nn.ModuleList(),
    )
    root.word_emb.emb_layers, root.word_emb.emb_projs = nn.ModuleList(), nn.ParameterList()
    root.crit, root.pos_emb = classes.ProjectedAdaptiveLogSoftmax(), classes.PositionalEmbedding()
    root.crit.cutoffs = [*settings["cutoffs"], sizes.vocab_size]
    root.crit.out_layers, root.crit.out_projs = nn.ModuleList(), nn.ParameterList()
    for name, tensor in state.items():
        parent, _, last = name.rpartition(".")
        if name.startswith("word_emb.emb_layers"):
            root.word_emb.emb_layers.append(nn.Embedding(*tensor.shape))
        elif name.startswith("crit.out_layers") and last == "weight":
            root.crit.out_layers.append(nn.Linear(*reversed(tensor.shape)))
        elif parent in ("word_emb.emb_projs", "crit.out_projs"):
            root.get_submodule(parent).append(nn.Parameter(tensor))
        elif name == "pos_emb.inv_freq":
            root.pos_emb.register_buffer(last, tensor)
        elif parent == "" or last.startswith("cluster_"):
            root.get_submodule(parent).register_parameter(last, nn.Parameter(tensor))
    width, inner = sizes.hidden_size, sizes.intermediate_size
    for _ in range(len(model.model.layers) // 2):
        layer = classes.RelPartialLearnableDecoderLayer()
        layer.dec_attn, layer.pos_ff = classes.RelPartialLearnableMultiHeadAttn(), classes.PositionwiseFF()
        for name, number in {"qkv_net": 3, "o_net": 1, "r_net": 1}.items():
            setattr(layer.dec_attn, name, nn.Linear(width, number * width, bias=False))
        layer.dec_attn.drop, layer.dec_attn.dropatt = nn.Dropout(settings["dropout"]), nn.Dropout(settings["dropatt"])
        parts = nn.Linear(width, inner), nn.ReLU(), nn.Dropout(settings["dropout"]), nn.Linear(inner, width)
        layer.pos_ff.CoreNet = nn.Sequential(*parts)
        for part in (layer.dec_attn, layer.pos_ff):
            part.layer_norm, part.pre_lnorm = nn.LayerNorm(width), settings["pre_lnorm"]
        root.layers.append(layer)
    root.load_state_dict(state)
    return root
