"""What somebody else's checkpoint could do to whoever converts it."""

import argparse
import pickle
import random
import sys
import types

import pytest
import torch
from common_convert import edit, make
from common_fairseq import HEADS, fairseq_stack
from common_transformer_xl import authors_classes, authors_module, authors_names, authors_settings, transformer_xl
from safetensors.torch import load_file, save_file

from sublayers.training.cli import main
from sublayers.training.data.tokenizers import train_tokenizer

SECRET = "hunter2"


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def bert(tmp_path):
    folder = tmp_path / "bert"
    make("BertForMaskedLM", num_hidden_layers=1).save_pretrained(folder)
    train_tokenizer(["a few words of a text"], "wordpiece", 61).save_pretrained(folder)
    (tmp_path / "secret.txt").write_text(SECRET)
    return folder


@pytest.fixture
def refuse(tmp_path, capsys):
    """See the command refuse a source in one line, and neither spring a trap nor write a folder."""

    def refuse_it(source, sentence):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["convert", str(source), str(tmp_path / "ours"), "--num_attention_heads=4"])
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sublayers convert:")]
        assert sentence in line
        assert end.value.code == 2
        assert not (tmp_path / "sprung").exists()
        assert not (tmp_path / "ours").exists()

    return refuse_it


def test_traps_work(tmp_path):
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung"))).close()
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["args", "extra_state", "model", "vocab", "model_config", "model_state"])
def test_objects_in_a_checkpoint_are_not_built(place, zipped, tmp_path, refuse):
    path, trap, xl = tmp_path / "checkpoint.pt", Trap(tmp_path / "sprung"), transformer_xl()
    # as fairseq and NVIDIA have them
    content = {"model": {"a": torch.ones(1)}, "model_state": authors_names(xl), "model_config": authors_settings(xl)}
    content |= {place: argparse.Namespace(layers=[trap]) if place == "args" else trap}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    refuse(path, "holds more than weights and would run code to load it; it is not read")


class Meter:
    """Stands for a class of fairseq's, with code that somebody else wrote."""

    def __setstate__(self, state):
        raise AssertionError("this code should not run")


def test_names_that_are_known_are_read_without_the_code_behind_them(tmp_path, refuse, monkeypatch):
    meters = types.ModuleType("fairseq.meters")
    meters.TimeMeter, Meter.__module__, Meter.__qualname__ = Meter, "fairseq.meters", "TimeMeter"
    for name in ("fairseq", "fairseq.meters"):
        monkeypatch.setitem(sys.modules, name, meters)
    meter = Meter()
    meter.n = 3
    torch.save({"model": {"a": torch.ones(1)}, "extra_state": meter}, tmp_path / "checkpoint.pt")
    # it is read, and found to be no model
    refuse(tmp_path / "checkpoint.pt", "the checkpoint has no decoder.embed_tokens.weight")


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_files_that_are_no_checkpoints_are_one_sentence(suffix, tmp_path, refuse):
    path = tmp_path / f"checkpoint.{suffix}"
    torch.save({"model": {"a": torch.ones(9)}}, path)
    saved = path.read_bytes()
    noise = random.Random(0)
    for content in (
        b"",
        b"x",
        saved[:100],
        saved[: len(saved) // 2],
        *(b"\x80\x02" + noise.randbytes(40) for _ in range(20)),
    ):
        path.write_bytes(content)
        refuse(path, "is damaged, or holds more than weights")


@pytest.mark.parametrize("content", [[1], torch.ones(2), {"model": 3}, {"model": {"a": "b"}}, {"a": torch.ones(1)}])
def test_files_that_hold_something_else_are_one_sentence(content, tmp_path, refuse):
    torch.save(content, tmp_path / "checkpoint.pt")
    refuse(tmp_path / "checkpoint.pt", "has no 'model' of tensors; is it a fairseq checkpoint?")


def test_objects_in_a_pickled_module_are_not_built(tmp_path, refuse, monkeypatch):
    model = transformer_xl()
    classes, settings = authors_classes(monkeypatch), authors_settings(model)
    path, trap = tmp_path / "model.pt", Trap(tmp_path / "sprung")

    def save(module, **options):
        torch.save(module, path, **options)
        refuse(path, "is damaged, or holds more than weights and would run code to load it; it is not read")

    for place in ("", "layers.1.dec_attn", "crit"):
        module = authors_module(model, classes, settings)
        module.get_submodule(place).trap = trap
        save(module)
    # up to torch 1.5, names of classes came with their source
    with pytest.warns(UserWarning, match="Couldn't retrieve source code"):
        save(authors_module(model, classes, settings), _use_new_zipfile_serialization=False)
    for other in (torch.nn.Linear(2, 2), classes.MemTransformerLM(), torch.nn.GRU(2, 2)):
        save(other)
    round_and_round = authors_module(model, classes, settings)
    round_and_round.drop._modules["drop"] = round_and_round.drop
    save(round_and_round)


@pytest.mark.parametrize("settings", [3, [1], {"same_length": True}, {"same_length": True, "mem_len": "7"}])
def test_settings_that_are_none_are_one_sentence(settings, tmp_path, refuse):
    torch.save({"model_state": authors_names(transformer_xl()), "model_config": settings}, tmp_path / "checkpoint.pt")
    refuse(tmp_path / "checkpoint.pt", "is damaged, or holds more than weights")


def test_objects_in_an_old_folder_of_transformers_are_not_built(tmp_path, refuse):
    model, folder = transformer_xl(), tmp_path / "old"
    folder.mkdir()
    edit(
        folder / "config.json", model_type="transfo-xl", auto_map={"AutoConfig": "evil.Evil"}, **authors_settings(model)
    )
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nclass Evil: pass\n")
    refuse(folder, "has neither model.safetensors nor pytorch_model.bin; download one of them")
    weights = authors_names(model)
    torch.save(weights | {"trap": Trap(tmp_path / "sprung")}, folder / "pytorch_model.bin")
    refuse(folder, "would run code to load it; it is not read")
    for other in ([1], {"a": 1}, torch.ones(2)):
        torch.save(other, folder / "pytorch_model.bin")
        refuse(folder, "holds something else than weights; is the folder complete?")
    torch.save(weights, folder / "pytorch_model.bin")
    edit(folder / "config.json", mem_len="long")
    refuse(folder, "memory_length='long' does not fit; give int")


def test_objects_in_the_weights_of_a_folder_are_not_built(bert, tmp_path, refuse):
    weights = load_file(bert / "model.safetensors")
    (bert / "model.safetensors").unlink()
    torch.save(weights | {"trap": Trap(tmp_path / "sprung")}, bert / "pytorch_model.bin")
    refuse(bert, "would run code to load it; it is not read")
    # beside a file that cannot hold any, this one is not read at all
    save_file(weights, bert / "model.safetensors", {"format": "pt"})
    main(["convert", str(bert), str(tmp_path / "ours")])
    assert not (tmp_path / "sprung").exists()


def test_code_in_a_folder_is_not_run_and_nobody_is_asked(bert, tmp_path, refuse, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the command asked"))
    code = f"open({str(tmp_path / 'sprung')!r}, 'w')\nclass Evil: pass\ndef generate(*args, **kwargs): pass\n"
    (bert / "evil.py").write_text(code)
    (bert / "custom_generate").mkdir()
    (bert / "custom_generate" / "generate.py").write_text(code)
    names = ("AutoConfig", "AutoModel", "AutoModelForMaskedLM")
    edit(
        bert / "config.json", auto_map=dict.fromkeys(names, "evil.Evil"), custom_pipelines={"x": {"impl": "evil.Evil"}}
    )
    edit(bert / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]})
    main(["convert", str(bert), str(tmp_path / "ours"), "--verify"])
    assert not (tmp_path / "sprung").exists()
    # there is code, which is ours
    assert (tmp_path / "ours" / "modeling_par_bert.py").exists()
    assert not [*(tmp_path / "ours").rglob("evil.py"), *(tmp_path / "ours").rglob("generate.py")]
    assert "evil" not in "".join(path.read_text() for path in (tmp_path / "ours").glob("*.json"))
    edit(bert / "tokenizer_config.json", tokenizer_class="Evil")
    main(["convert", str(bert), str(tmp_path / "again")])
    assert not (tmp_path / "sprung").exists()
    (tmp_path / "ours").rename(tmp_path / "first")
    edit(bert / "config.json", model_type="evil")
    refuse(bert, "holds 'evil'; of transformers' models, gpt2, ")
    edit(bert / "config.json", model_type="bert", architectures=["pipeline"])
    refuse(bert, "holds 'pipeline', which is no bert of transformers")


def test_a_tokenizer_that_is_nothing_but_code_is_refused_and_nobody_is_asked(tmp_path, refuse, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: (tmp_path / "sprung").touch() or "y")
    folder = tmp_path / "marian"
    make("MarianMTModel").save_pretrained(folder)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nclass Evil: pass\n")
    edit(folder / "tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", None]})
    refuse(folder, "the tokenizer in")


@pytest.mark.parametrize("name", ["../secret.txt", "{home}/secret.txt", "sub/../../secret.txt"])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "model.safetensors.index.json"])
def test_names_of_files_do_not_lead_out_of_a_folder(name, file, bert, tmp_path, refuse):
    name = name.format(home=tmp_path)
    (bert / "sub").mkdir()
    edit(bert / file, vocab_file="vocab.txt", weight_map={"a": [name]})
    refuse(bert, f"names {name!r}, which is outside of the folder")
    # where nothing is to be found, the name is only a name; others' configurations are full of them
    (tmp_path / "secret.txt").unlink()
    main(["convert", str(bert), str(tmp_path / "ours")])


def test_links_do_not_lead_out_of_a_folder(bert, tmp_path, refuse):
    (bert / "vocab.txt").symlink_to(tmp_path / "secret.txt")
    refuse(bert, "secret.txt; put a copy in its place")
    (bert / "vocab.txt").unlink()
    (bert / "sub").symlink_to(tmp_path)
    refuse(bert, "leads out of the folder")
    (bert / "sub").unlink()
    (bert / "vocab.txt").symlink_to(bert / "tokenizer.json")
    main(["convert", str(bert), str(tmp_path / "ours")])


@pytest.mark.parametrize("content", ["{", "3", "[]", "null", '"bert"'])
def test_settings_that_are_no_mapping_are_one_sentence(content, bert, refuse):
    (bert / "config.json").write_text(content)
    refuse(bert, "is damaged")
    (bert / "config.json").write_text('{"model_type": "bert", "architectures": [3]}')
    refuse(bert, "bert holds")
    (bert / "config.json").unlink()
    refuse(bert, "has no config.json; is it a folder that transformers saved?")


OPTIONS = {"decoder_attention_heads": HEADS, "decoder_normalize_before": True}


@pytest.mark.parametrize(
    "options",
    [
        *(OPTIONS | {"decoder_attention_heads": value} for value in ([4], {})),
        OPTIONS | {"activation_fn": ["relu"]},
        OPTIONS | {"decoder_normalize_before": []},
        OPTIONS | {"dropout": "half"},
        *(3, "options", [1], torch.ones(2)),
    ],
)
@pytest.mark.parametrize("place", ["args", "cfg"])
def test_options_of_another_type_are_one_sentence(options, place, tmp_path, refuse):
    path = tmp_path / "checkpoint.pt"
    given = argparse.Namespace(**options) if isinstance(options, dict) and place == "args" else options
    torch.save({"model": fairseq_stack("decoder"), place: {"model": given} if place == "cfg" else given}, path)
    refuse(path, "")


DISGUISES = {
    "sparse": lambda tensor: tensor.to_sparse(),
    "without values": lambda tensor: tensor.to("meta"),
    "complex": lambda tensor: tensor.to(torch.complex64),
}


@pytest.mark.parametrize("kind", DISGUISES)
@pytest.mark.parametrize("name", ["decoder.embed_tokens.weight", "decoder.layers.1.fc1.bias"])
def test_tensors_that_are_not_all_there_are_named(name, kind, tmp_path, refuse):
    weights = fairseq_stack("decoder")
    torch.save({"model": weights | {name: DISGUISES[kind](weights[name])}}, tmp_path / "checkpoint.pt")
    refuse(tmp_path / "checkpoint.pt", f"{name} is a tensor of torch.")
    model = transformer_xl()
    weights, settings, name = authors_names(model), authors_settings(model), "layers.0.pos_ff.layer_norm.weight"
    changed = {name: DISGUISES[kind](weights[name])}
    torch.save({"model_state": weights | changed, "model_config": settings}, tmp_path / "checkpoint.pt")
    refuse(tmp_path / "checkpoint.pt", f"{name} is a tensor of torch.")
    point = {"crit.out_layers.0.bias": torch.tensor(1.0)}
    torch.save({"model_state": weights | point, "model_config": settings}, tmp_path / "checkpoint.pt")
    refuse(tmp_path / "checkpoint.pt", "holds a value of another type or shape than its kind has; it is not converted")
