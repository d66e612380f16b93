import argparse
import json
import re
from functools import wraps
from itertools import product
from pathlib import Path

import pytest
import torch
from common import REFERENCE, tokens
from common_convert import assert_complete, edit, make
from common_fairseq import WIDTH, bert, fairseq_stack, translation_stacks
from huggingface_hub import constants, create_repo, upload_folder
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, GPT2LMHeadModel

from sublayers.convert import bert as convert_bert, sources
from sublayers.modeling import body, modeling_reordered_seq2seq
from sublayers.training.cli import main
from sublayers.training.data.tokenizers import train_tokenizer

HEADS = ["BertForMaskedLM", "BertForMultipleChoice", "BertForQuestionAnswering", "BertForSequenceClassification"]
# these find the places of tokens, or the end of a text
HEADS += (
    PLACED := ["GPT2LMHeadModel", "GPT2ForSequenceClassification", "BartForConditionalGeneration", "MarianMTModel"]
)

pytest_plugins = ["hub_server"]


@pytest.fixture
def run(tmp_path, capsys):
    """Run the command on a source, and return what it printed and the report."""

    def run_on(source, *flags):
        flags = [str(tmp_path / source), str(tmp_path / "ours"), "--report", str(tmp_path / "report.json"), *flags]
        main(["convert", *flags])
        return capsys.readouterr().out, json.loads((tmp_path / "report.json").read_text())

    return run_on


@pytest.fixture
def refuse(tmp_path, refusal):
    """See the command end with a sentence that matches, and nothing written."""

    def refuse_it(source, sentence, *flags):
        assert re.search(sentence, refusal("convert", tmp_path / source, tmp_path / "ours", *flags))
        assert not (tmp_path / "ours").exists()

    return refuse_it


def save(folder, name="BertForMaskedLM", **options):
    model = make(name, **options)
    model.save_pretrained(folder)
    return model


def test_what_transformers_saved_is_verified_and_accounted_for(tmp_path, run):
    source = save(tmp_path / "source")
    printed, report = run("source", "--verify")
    assert float(re.search(r"verified: the outputs differ by at most (\S+) of their size\n", printed)[1]) < 1e-5
    assert_complete(report, source.state_dict(), tmp_path / "ours")
    total = len(source.state_dict())
    assert f"taken over: {total} of {total} tensors of the source\n" in printed
    assert "sublayer order (sf)2\n" in printed
    assert not {"random", "left out"} & {*printed.split()}
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "ours")
    assert f"{model.num_parameters():,} parameters, " in printed
    torch.testing.assert_close(model(tokens(2, 9)).logits, source(tokens(2, 9)).logits, atol=1e-5, rtol=0)


def test_an_untrained_source_whose_norms_are_all_alike_is_traced_to_the_right_ones(tmp_path, run):
    GPT2LMHeadModel(make("GPT2LMHeadModel").config).save_pretrained(tmp_path / "source")
    _, report = run("source", "--sublayer_order=fsfs")
    for i in range(2):
        block = f"transformer.h.{i}"
        assert report["taken_over"][f"{block}.ln_2.weight"] == {f"model.layers.{2 * i}.norm.weight": "whole"}
        assert report["taken_over"][f"{block}.attn.c_attn.weight"] == {
            f"model.layers.{2 * i + 1}.mixer.{name}_proj.weight": f"columns {start} to {start + 15}, transposed"
            for name, start in (("q", 0), ("k", 16), ("v", 32))
        }


def test_sublayers_that_are_new_or_left_out_are_named(tmp_path, run):
    source = save(tmp_path / "source").state_dict()
    printed, report = run("source", "--sublayer_order=sf3")
    names = ("norm", "mixer.fc1", "mixer.fc2")
    assert report["new"] == [f"model.layers.3.{name}.{kind}" for name in names for kind in ("weight", "bias")]
    assert_complete(report, source, tmp_path / "ours", report["new"])
    left = {name for name in source if name.startswith("bert.encoder.layer.1.attention.")}
    assert report["left_out"] == dict.fromkeys(left, "of sublayers that the order lacks")
    assert f"new, with random weights: {', '.join(report['new'])}\n" in printed
    assert f"left out, of sublayers that the order lacks: {', '.join(report['left_out'])}\n" in printed


def test_warns_of_sublayers_that_are_random_or_dropped(tmp_path, capsys):
    save(tmp_path / "source")
    block = "bert.encoder.layer"
    orders = {
        "sf3": f"has random weights in model.layers.3 and dropped {block}.1.attention",
        "s2f4": "has random weights in model.layers.4, model.layers.5",
        "s2f": f"dropped {block}.1.intermediate, {block}.1.output",
        "fssf": None,
        "interleaved(2)": None,
    }
    for order, expected in orders.items():
        ours = tmp_path / order
        main(["convert", str(tmp_path / "source"), str(ours), f"--sublayer_order={order}"])
        warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning:")]
        assert warnings == ([f"warning: {ours} {expected}; train it before use, as --help says"] if expected else [])


def test_weights_that_a_folder_has_too_many_are_left_out(tmp_path, run):
    save(tmp_path / "source", "BertForPreTraining")
    edit(tmp_path / "source" / "config.json", architectures=["BertForMaskedLM"])
    _, report = run("source")
    assert report["new"] == []
    heads = {f"{name}.{kind}" for name in ("bert.pooler.dense", "cls.seq_relationship") for kind in ("weight", "bias")}
    assert report["left_out"] == dict.fromkeys(heads, "unknown to BertForMaskedLM")


def fairseq(kind):
    """Random weights by the names of fairseq; kinds are those of the models that it trains."""
    if kind == "lm":
        return fairseq_stack("decoder")
    if kind == "macaron-bert":
        return bert("tied")
    convolutions = {"conv_rows": 2 * WIDTH, "kernels": ("l", "l")} if kind == "lightconv" else {}
    state = translation_stacks(macaron=kind == "macaron", **convolutions)
    return state | ({"encoder.embed_order": torch.randn(3, WIDTH)} if kind == "iot" else {})


MODEL_TYPES = {"lm": "sandwich_lm", "transformer": "sandwich_seq2seq", "macaron": "macaron_seq2seq"}
MODEL_TYPES |= {"macaron-bert": "macaron_bert", "lightconv": "sandwich_seq2seq", "iot": "iot_seq2seq"}


# the weights alone do not tell in how many orders IOT's encoder runs
@pytest.mark.parametrize(
    ("kind", "suffix"), [*product(MODEL_TYPES, ["pt"]), *product([*MODEL_TYPES][:-1], ["safetensors"])]
)
def test_what_fairseq_saved_is_accounted_for(kind, suffix, tmp_path, run):
    state = fairseq(kind)
    if suffix == "pt":
        torch.save({"model": state, "args": argparse.Namespace(encoder_max_order=2)}, tmp_path / "source.pt")
    else:
        save_file(state, tmp_path / "source.safetensors")
    _, report = run(f"source.{suffix}", "--num_attention_heads=4")
    assert AutoModel.from_pretrained(tmp_path / "ours").config.model_type == MODEL_TYPES[kind]
    assert_complete(report, state, tmp_path / "ours")
    assert report["new"] == []
    buffers = {name for name in state if name.endswith(("version", "_float_tensor"))}
    assert report["left_out"] == dict.fromkeys(buffers, "a buffer without information")


AUTHORS = "sandwich/lm_adaptive sandwich/lm_tied_noadaptive sandwich/mt_preln macaron/mt_macaron_preln"
AUTHORS += " macaron/bert_macaron_pretrain iot/orders_postln iot/baseline_dynamicconv"


@pytest.mark.parametrize("name", AUTHORS.split())
def test_what_the_authors_saved_is_accounted_for(name, tmp_path, run):
    weights = load_file(REFERENCE / f"{name}.weights.safetensors")
    options = json.loads((REFERENCE / f"{name}.json").read_text())["args"]
    torch.save({"model": weights, "args": argparse.Namespace(**options)}, tmp_path / "source.pt")
    _, report = run("source.pt")
    assert_complete(report, weights, tmp_path / "ours")
    assert report["new"] == []


def test_a_source_that_computes_something_else_is_not_kept(tmp_path, refuse, monkeypatch):
    save(tmp_path / "source")
    from_bert = sources.from_bert

    def with_another_activation(source):
        model, pieces = from_bert(source)
        # this model itself is right, but not what its folder says
        model.config.hidden_act = "relu"
        return model, pieces

    def with_another_bias(source):
        model, pieces = from_bert(source)
        model.lm_head.bias.data[7] += 1e-3
        return model, pieces

    monkeypatch.setattr(sources, "from_bert", with_another_activation)
    refuse("source", r"logits differs from the source's by \S+ of its size; nothing is kept", "--verify")
    monkeypatch.setattr(sources, "from_bert", with_another_bias)
    refuse("source", r"lm_head.bias is not what it was copied from")
    monkeypatch.setattr(sources, "from_bert", from_bert)
    swapped = {"attention.self.query": "mixer.k_proj", "attention.self.key": "mixer.q_proj"}
    monkeypatch.setitem(convert_bert.PARTS, "s", convert_bert.PARTS["s"] | swapped)
    refuse("source", r"logits differs from the source's by", "--verify")


@pytest.mark.parametrize("name", HEADS)
def test_a_model_that_reads_its_padding_is_not_kept(name, tmp_path, refuse, monkeypatch):
    source = save(tmp_path / "source", name)
    model_class = type(sources.from_transformers(source, {})[0])
    forward = model_class.forward

    @wraps(forward)
    def wrong(self, attention_mask=None, **inputs):
        return forward(self, **inputs)

    monkeypatch.setattr(model_class, "forward", wrong)
    refuse("source", "differs from the source's by", "--verify")


@pytest.mark.parametrize("name", ["BertForSequenceClassification", *PLACED])
def test_a_model_that_counts_its_padding_is_not_kept(name, tmp_path, refuse, monkeypatch):
    save(tmp_path / "source", name)
    for module in (body, modeling_reordered_seq2seq):
        monkeypatch.setattr(module, "number_positions", lambda length, *_: torch.arange(length)[None])
    refuse("source", "differs from the source's by", "--verify")


def test_the_folder_says_how_to_generate(tmp_path, run):
    # as the released one, it has no token for padding
    model = save(tmp_path / "source", "GPT2LMHeadModel", pad_token_id=None)
    model.generation_config.update(num_beams=3, no_repeat_ngram_size=2, max_length=20)
    model.save_pretrained(tmp_path / "source")
    run("source", "--verify")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert (ours.generation_config.num_beams, ours.generation_config.no_repeat_ngram_size) == (3, 2)
    assert torch.equal(ours.generate(tokens(2, 5), pad_token_id=2), model.generate(tokens(2, 5), pad_token_id=2))


def test_the_words_alone_are_a_tokenizer(tmp_path, run):
    save(tmp_path / "source")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "few", "word", "##s"]
    (tmp_path / "source" / "vocab.txt").write_text("\n".join(words))
    run("source")
    assert AutoTokenizer.from_pretrained(tmp_path / "ours")("A few words")["input_ids"] == [2, 5, 6, 7, 8, 3]


def test_half_precision_is_taken_over_number_by_number(tmp_path, run):
    model = save(tmp_path / "source").bfloat16()
    model.save_pretrained(tmp_path / "source")
    _, report = run("source", "--verify")
    source = {name: tensor.float() for name, tensor in model.state_dict().items()}
    assert_complete(report, source, tmp_path / "ours")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_a_name_on_the_hub_is_a_source(hub, form, tmp_path, monkeypatch, capsys):
    source = save(tmp_path / "source")
    train_tokenizer(["one text, and another"], "wordpiece", 60).save_pretrained(tmp_path / "source")
    # repositories have the same weights for other libraries, too
    for name in ("flax_model.msgpack", "openvino.bin"):
        (tmp_path / "source" / name).touch()
    if form == "bin":
        (tmp_path / "source" / "model.safetensors").unlink()
        torch.save(source.state_dict(), tmp_path / "source" / "pytorch_model.bin")
    upload_folder(repo_id=create_repo("ann/bert").repo_id, folder_path=tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    main(["convert", "ann/bert", "ours", "--verify", "--report", "report.json"])
    assert "verified: " in capsys.readouterr().out
    assert json.loads(Path("report.json").read_text())["source"] == "ann/bert"
    assert json.loads(Path("ours/run.json").read_text())["started_from"] == "ann/bert"
    assert AutoTokenizer.from_pretrained("ours")("another text").input_ids
    (snapshot,) = Path(constants.HF_HUB_CACHE, "models--ann--bert/snapshots").iterdir()
    weights = "pytorch_model.bin" if form == "bin" else "model.safetensors"
    read = {"config.json", "tokenizer.json", "tokenizer_config.json", weights}
    assert {path.name for path in snapshot.iterdir()} == read


def test_writes_a_whole_folder_beside_its_source_or_nothing(tmp_path, refuse, run):
    save(tmp_path / "source")
    (tmp_path / "ours").symlink_to(tmp_path / "source" / "ours")
    refuse("source", "ours lies in the source .*; choose a folder outside of it")
    (tmp_path / "ours").unlink()
    refuse("nowhere", "there is no folder .*/nowhere; give another")
    (tmp_path / "report").touch()
    refuse("source", "report exists; choose another file", "--report", str(tmp_path / "report"))
    tokenizer = tmp_path / "source" / "tokenizer_config.json"
    tokenizer.write_text(json.dumps({"tokenizer_class": "NoSuchTokenizer"}))
    refuse("source", "the tokenizer in .*source cannot be loaded")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "report"}
    tokenizer.unlink()
    (tmp_path / "ours").mkdir()
    run("source")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "report", "report.json", "ours"}
