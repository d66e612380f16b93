"""Tiny sources of conversions, and what a report of a conversion has to say."""

import json
import re

import torch
import transformers
from common import randomize
from safetensors.torch import load_file

from sublayers.training.commands.convert import main


def follow(tensor, how):
    """Do to a source's tensor what a report says was done."""
    kind, *then = how.split(", ")
    if found := re.fullmatch(r"(rows|columns) (\d+) to (\d+)", kind):
        places = slice(int(found[2]), int(found[3]) + 1)
        tensor = tensor[places] if found[1] == "rows" else tensor[:, places]
    elif kind == "rows in reverse order":
        tensor = tensor.flip(0)
    else:
        assert kind == "whole"
    assert not then or then[0] in ("transposed", "in another shape")
    return tensor.T if "transposed" in then else tensor


def assert_complete(report, source, folder, new=()):
    """Every tensor of the source has its place or a reason, and every saved parameter is what the report says."""
    assert report["taken_over"].keys() | report["left_out"].keys() == source.keys()
    assert not report["taken_over"].keys() & report["left_out"].keys()
    found = load_file(folder / "model.safetensors")
    seen = set()
    for name, parameters in report["taken_over"].items():
        for parameter, how in parameters.items():
            seen.add(parameter)
            # what is tied is saved once
            if parameter in found:
                expected = follow(source[name], how)
                assert torch.equal(found[parameter], expected.reshape(found[parameter].shape)), (name, parameter)
    assert found.keys() - seen == set(new)


SPECIAL = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
SIZES = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4}
SIZES |= {"num_hidden_layers": 2, "max_position_embeddings": 40, "num_key_value_heads": 4, **SPECIAL}
SEQ2SEQ = {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "encoder_layers": 2, "decoder_layers": 3}
SEQ2SEQ |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 32, "vocab_size": 61}
MARIAN = SEQ2SEQ | {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": 2}
# what is not in SIZES, by model_type
OTHERS = {
    **dict.fromkeys(["bart", "mbart", "pegasus"], SEQ2SEQ),
    "marian": MARIAN,
    "distilbert": {"vocab_size": 61, "dim": 16, "hidden_dim": 24, "n_heads": 4, "n_layers": 2} | {"pad_token_id": 1},
    "electra": SIZES | {"embedding_size": 16},
    "gemma": SIZES | {"head_dim": 8, "hidden_act": "gelu"},
    "gpt2": {"vocab_size": 61, "n_positions": 40, "n_embd": 16, "n_layer": 2, "n_head": 4} | SPECIAL,
    "stablelm": SIZES | {"partial_rotary_factor": 0.5},
    "modernbert": SIZES | {"local_attention": 8, "cls_token_id": 0, "sep_token_id": 2},
}


def make(name, **options):
    """A model of transformers of random weights, by the name of its class."""
    model_class = getattr(transformers, name)
    model_type = model_class.config_class.model_type
    model = randomize(model_class(model_class.config_class(**OTHERS.get(model_type, SIZES) | options)))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            # gains are around 1
            parameter.sub_(int("norm" in parameter_name and model_type == "gemma"))
    return model


def convert(folder, *flags):
    """Run the command on `source`, which gives `ours`, and return its report."""
    main([str(folder / "source"), str(folder / "ours"), "--report", str(folder / "report.json"), *flags])
    return json.loads((folder / "report.json").read_text())


def edit(path, **fields):
    """Change fields of a JSON file, or make one."""
    path.parent.mkdir(exist_ok=True)
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(found | fields))
