import json
import sys
import types
from argparse import Namespace
from collections import Counter, OrderedDict

import pytest
import torch
from common import REFERENCE, tokens
from common_transformer_xl import (
    KINDS,
    authors_classes,
    authors_module,
    authors_names,
    authors_settings,
    transformer_xl,
)
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from sublayers.training.cli import main

BUFFER = {"pos_emb.inv_freq": "a buffer without information"}


@pytest.fixture
def convert(tmp_path, capsys):
    """Run the command on a source, and return the model and the report."""

    def convert_it(source, *flags):
        main(["convert", str(source), str(tmp_path / "ours"), "--report", str(tmp_path / "report.json"), *flags])
        assert "taken over" in capsys.readouterr().out
        return AutoModelForCausalLM.from_pretrained(tmp_path / "ours"), json.loads(
            (tmp_path / "report.json").read_text()
        )

    return convert_it


def assert_equal(converted, model, report):
    assert torch.equal(converted(tokens(2, 9)).logits, model(tokens(2, 9)).logits)
    assert report["new"] == []


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_reads_a_pickled_module_without_its_code(kind, tmp_path, convert, monkeypatch):
    model = transformer_xl(clamp_length=5, **kind)
    settings = authors_settings(model) | {"clamp_len": 5}
    classes = authors_classes(monkeypatch)
    torch.save(authors_module(model, classes, settings), tmp_path / "model.pt")
    for authors_class in vars(classes).values():
        authors_class.__setstate__ = lambda *_: pytest.fail("this code should not run")
    converted, report = convert(tmp_path / "model.pt")
    assert_equal(converted, model, report)
    assert report["left_out"] == BUFFER
    config = converted.config
    assert (config.memory_length, config.clamp_length, config.same_length) == (7, 5, model.config.same_length)
    assert (config.dropout, config.attention_dropout) == (0.3, 0.2)
    assert (config.norm_position, config.adaptive_cutoffs) == (
        model.config.norm_position,
        model.config.adaptive_cutoffs,
    )


@pytest.mark.parametrize("same_length", [True, False])
def test_reads_a_checkpoint_of_nvidia(same_length, tmp_path, convert, monkeypatch):
    vocabulary = types.ModuleType("utils.vocabulary")
    vocabulary.Vocab = type("Vocab", (), {"__module__": "utils.vocabulary"})
    for name in ("utils", "utils.vocabulary"):
        monkeypatch.setitem(sys.modules, name, vocabulary)
    vocab = vocabulary.Vocab()
    vocab.counter, vocab.sym2idx = Counter(a=3), OrderedDict(a=0)
    # with NVIDIA, a token sees as many as it remembers and itself
    model = transformer_xl(same_length=same_length, memory_length=7 + same_length)
    settings = authors_settings(model) | {"mem_len": 7, "attn_type": 0, "ext_len": 0, "dtype": None}
    checkpoint = {
        "model_config": settings,
        "model_state": authors_names(model),
        "vocab": vocab,
        "args": Namespace(lr=0.01),
    }
    torch.save(checkpoint, tmp_path / "checkpoint_best.pt")
    converted, report = convert(tmp_path / "checkpoint_best.pt")
    assert_equal(converted, model, report)
    assert (converted.config.memory_length, converted.config.same_length) == (7 + same_length, same_length)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_reads_weights_without_settings(suffix, tmp_path, convert):
    model = transformer_xl(adaptive_factor=2)
    path = tmp_path / f"weights.{suffix}"
    (save_file if suffix == "safetensors" else torch.save)(authors_names(model), path)
    converted, report = convert(path, "--sublayer_order=(sf)2")
    assert_equal(converted, model, report)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.representatives(6)
def test_reads_an_old_folder_of_transformers(kind, file, tmp_path, convert):
    model = transformer_xl(**kind)
    weights = authors_names(model)
    for kind in ("weight", "bias"):
        if (name := f"crit.cluster_{kind}") in weights:
            weights[name] = weights[name].flip(0)
    weights = {name if name.startswith("crit.") else f"transformer.{name}": tensor for name, tensor in weights.items()}
    (tmp_path / "old").mkdir()
    (save_file if file == "model.safetensors" else torch.save)(weights, tmp_path / "old" / file)
    config = {"model_type": "transfo-xl", "architectures": ["TransfoXLLMHeadModel"], "n_layer": 2, "eos_token_id": 0}
    config |= authors_settings(model) | {"layer_norm_epsilon": 1e-6, "init_std": 0.03, "proj_init_std": 0.04}
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    converted, report = convert(tmp_path / "old")
    model.config.layer_norm_eps = 1e-6
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-6
    assert_equal(converted, model, report)
    assert report["left_out"] == {f"transformer.{name}": why for name, why in BUFFER.items()}
    config = converted.config
    assert (config.eos_token_id, config.layer_norm_eps) == (0, 1e-6)
    assert (config.initializer_range, config.projection_initializer_range) == (0.03, 0.04)


@pytest.mark.parametrize("name", ["char_interleaved_n3_adaptspan", "char_sandwich_n3k1_fixedspan"])
@pytest.mark.parametrize("form", ["checkpoint", "weights", "safetensors"])
def test_reads_the_files_of_adaptive_span(name, form, tmp_path, convert):
    weights = load_file(REFERENCE / "sandwich" / f"{name}.weights.safetensors")
    path = tmp_path / "source.pt"
    if form == "checkpoint":
        weights = {f"module.{name}": tensor for name, tensor in weights.items()}
        logs = {"step": [1], "train_bpc": [2.5]}
        torch.save({"iter_no": 3, "model": weights, "logger": logs, "optimizer": {"state": {}}}, path)
    elif form == "weights":
        torch.save(weights, path)
    else:
        path = REFERENCE / "sandwich" / f"{name}.weights.safetensors"
    converted, report = convert(path)
    assert report["new"] == []
    assert converted.config.sublayer_order == ("(sf)3" if "interleaved" in name else "s(sf)2f")
    numbers = load_file(REFERENCE / "sandwich" / f"{name}.io.safetensors")
    scores = converted(numbers["tokens"][:, :16]).logits.log_softmax(-1)
    torch.testing.assert_close(scores, numbers["seg0.log_probs"], atol=1e-5, rtol=1e-5)
