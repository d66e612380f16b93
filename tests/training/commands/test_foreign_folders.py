"""What somebody else's folder could do to whoever trains with it, converts it or publishes it."""

import io
import json
import os
import socket

import pytest
import torch
from common_convert import edit
from safetensors.torch import load_file, save_file
from tiny_models import save_model
from tiny_runs import write_rows
from transformers import AutoConfig, AutoTokenizer, BertConfig, BertModel

from sublayers.hub.loading import load, refuse_ways_out
from sublayers.training.cli import main
from sublayers.training.data.tokenizers import train_tokenizer

pytestmark = pytest.mark.slow

pytest_plugins = ["hub_server"]
SECRET = "hunter2"
WORDS = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
# reads a folder, and what else the command cannot do without
COMMANDS = {
    "export": "export {folder} {out}",
    "convert": "convert {folder} {out}",
    "glue": "glue --task_name sst2 --train_file {data} --validation_file {data} --model_name_or_path {folder} "
    "--output_dir {out} --use_cpu --report_to none --num_train_epochs 1 --max_length 8",
    "squad": "squad --train_file {data} --validation_file {data} --model_name_or_path {folder} --output_dir {out} "
    "--use_cpu --report_to none",
    "pretrain": "pretrain --objective mlm --train_file {data} --model_name_or_path {folder} --output_dir {out} "
    "--use_cpu --report_to none --block_size 16 --max_steps 1",
    "seq2seq": "seq2seq --task translation --train_file {data} --validation_file {data} --source a --target b "
    "--model_name_or_path {folder} --output_dir {out} --use_cpu --report_to none",
    "distill": "distill {folder} --objective embeddings --sublayer_order sf --train_file {data} --max_length 16 "
    "--output_dir {out} --use_cpu --report_to none --max_steps 1",
}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "theirs"
    save_model(folder, words=61)
    (tmp_path / "secret.txt").write_text(WORDS + SECRET)
    return folder


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Give the words of a command on a folder, where nobody is there to be asked, or too many."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    data = tmp_path / "data.jsonl"
    write_rows(data, [{"sentence": "a text", "label": n % 2, "text": "a"} for n in range(8)])
    return lambda command, folder: COMMANDS[command].format(folder=folder, out=tmp_path / "out", data=data).split()


@pytest.fixture
def refuse(words, refusal, tmp_path):
    """See a command refuse a folder in one sentence."""

    def refuse_it(command, folder, sentence):
        assert sentence in refusal(*words(command, folder))
        assert not (tmp_path / "sprung").exists()
        assert not (tmp_path / "out").exists()

    return refuse_it


def name_file_elsewhere(folder, below=""):
    edit(folder / below / "tokenizer_config.json", init_inputs=[f"{folder.parent}/secret.txt"])
    return f"{below}/tokenizer_config.json names '{folder.parent}/secret.txt', which is outside of the folder"


def name_file_elsewhere_below(folder):
    return name_file_elsewhere(folder, "target_tokenizer")


def name_weights_elsewhere(folder):
    (folder / "model.safetensors").rename(folder.parent / "private.safetensors")
    names = dict.fromkeys(load_file(folder.parent / "private.safetensors"), "../private.safetensors")
    edit(folder / "model.safetensors.index.json", metadata={}, weight_map=names)
    return "names '../private.safetensors', which is outside of the folder"


def need_code(folder):
    sprung = folder.parent / "sprung"
    (folder / "evil.py").write_text(f"open({str(sprung)!r}, 'w')\nclass Evil: pass\n")
    names = ("AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoModelForSequenceClassification")
    edit(folder / "config.json", model_type="evil", auto_map=dict.fromkeys(names, "evil.Evil"))
    return "needs code of its own, which is not run"


def wait_for_a_pipe(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    return "config.json is neither a file nor a folder"


def lead_out(folder):
    (folder / "vocab.txt").symlink_to(folder.parent / "secret.txt")
    return f"vocab.txt leads out of the folder, to {folder.parent}/secret.txt"


TRAPS = (name_file_elsewhere, name_file_elsewhere_below, name_weights_elsewhere, need_code, wait_for_a_pipe, lead_out)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_seen_by_every_command(trap, command, folder, refuse, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    said = trap(folder)
    is_unknown = (trap, command) == (need_code, "convert")
    refuse(command, folder, "of transformers' models, gpt2," if is_unknown else said)


def test_inputs_that_a_tokenizer_does_not_make_are_not_asked_for(folder, words, tmp_path):
    edit(folder / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask", "x"])
    main(words("distill", folder))
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_run_forgets_code_that_is_named_where_it_starts_from(words, tmp_path):
    folder = tmp_path / "theirs"
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertModel(BertConfig(**sizes)).save_pretrained(folder)
    train_tokenizer(["a few words of a text"], "wordpiece", 61).save_pretrained(folder)
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["x/y--evil.T", "x/y--evil.T"]})
    edit(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    pipelines = {"x": {"impl": "x/y--evil.Evil", "pt": ["AutoModel"], "type": "text"}}
    edit(folder / "config.json", auto_map={"AutoModel": "x/y--evil.Evil"}, custom_pipelines=pipelines)
    main(words("glue", folder))
    written = [path.read_text() for path in (tmp_path / "out").rglob("*.json")]
    assert len(written) > 3
    assert not any("evil" in text for text in written)


@pytest.mark.parametrize("key", ["vocab", "vocab_file", "init_inputs", "tokenizer_file"])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_vocabulary_is_not_taken_from_where_the_command_runs(file, key, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").write_text(WORDS + SECRET)
    edit(folder / file, **{key: ["words"] if key == "init_inputs" else "words"})
    # beside one of its own, of the same name
    (folder / "words").write_text(WORDS)
    with pytest.raises(ValueError, match="names 'words', which is outside of the folder"):
        load(AutoTokenizer, folder)


FILES = "config.json modules.json model.safetensors.index.json pytorch_model.bin.index.json model.fp16.index.json"
FILES += " adapter_model.safetensors.index.json checkpoint-1/model.safetensors.index.json checkpoint-1/b/config.json"


@pytest.mark.parametrize("name", ["{home}/secret.txt", "../secret.txt", "checkpoint-1/../../secret.txt", "/dev/zero"])
@pytest.mark.parametrize("file", FILES.split())
def test_no_file_of_a_folder_names_one_outside_of_it(file, name, folder, tmp_path):
    (folder / "checkpoint-1" / "b").mkdir(parents=True)
    name = "../" * file.count("/") + name if name.startswith("..") else name.format(home=tmp_path)
    edit(folder / file, weight_map={"a": {"b": [name]}})
    with pytest.raises(ValueError, match=r"names .*, which is outside of the folder"):
        refuse_ways_out(folder)


def test_the_modules_of_a_sentence_encoder_are_in_its_folder(folder, tmp_path):
    (tmp_path / "private").mkdir()
    for place in ("../private", str(tmp_path / "private")):
        (folder / "modules.json").write_text(json.dumps([{"path": "", "type": "T"}, {"path": place, "type": "P"}]))
        with pytest.raises(ValueError, match=r"modules\.json names .*private', which is outside"):
            refuse_ways_out(folder)


def test_names_that_lead_nowhere_or_stay_inside_are_names(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    edit(folder / "tokenizer_config.json", tokenizer_file="/nowhere/tokenizer.json", name_or_path=str(folder.parent))
    edit(folder / "config.json", _name_or_path="..", chat=["\0", "\ud800", "a" * 9999, "", "theirs/config.json"])
    edit(folder / "sub" / "model.safetensors.index.json", weight_map={"a": "../model.safetensors"})
    # such as what a killed run leaves
    (folder / "sub" / "config.json").write_text("{")
    refuse_ways_out(folder)


def test_what_is_no_file_is_refused(folder, tmp_path):
    socket.socket(socket.AF_UNIX).bind(str(folder / "socket"))
    with pytest.raises(ValueError, match="socket is neither a file nor a folder"):
        refuse_ways_out(folder)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is neither a file nor a folder"):
        refuse_ways_out(tmp_path / "pipe")


@pytest.mark.parametrize("odd", [{"model_max_length": "x"}, {"model_max_length": {}}, {"model_input_names": [1]}])
def test_odd_values_of_a_tokenizer_are_one_sentence(odd, folder):
    edit(folder / "tokenizer_config.json", **odd)
    with pytest.raises(ValueError, match="is damaged"):
        load(AutoTokenizer, folder)


def test_links_that_go_in_circles_are_no_files(folder):
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    refuse_ways_out(folder)


def test_the_hubs_cache_is_one_folder(folder, tmp_path):
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "0a1b"
    for place in (blobs, snapshot / "target_tokenizer"):
        place.mkdir(parents=True)
    for number, file in enumerate(folder.iterdir()):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
        (snapshot / "target_tokenizer" / file.name).symlink_to(f"../../../blobs/{number}")
    assert load(AutoConfig, snapshot).model_type == "par_bert"
    assert len(load(AutoTokenizer, snapshot / "target_tokenizer")) == len(load(AutoTokenizer, snapshot))
    (snapshot / "evil.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(ValueError, match=r"evil\.txt leads out"):
        load(AutoConfig, snapshot)


def test_a_repository_is_checked_like_a_folder(hub, folder, tmp_path):
    from sublayers.hub.upload import upload

    upload(folder, "ann/theirs")
    assert load(AutoConfig, "ann/theirs").model_type == "par_bert"
    edit(folder / "special_tokens_map.json", vocab_file=str(tmp_path / "secret.txt"))
    upload(folder, "ann/theirs")
    with pytest.raises(ValueError, match="which is outside of the folder"):
        load(AutoTokenizer, "ann/theirs")
    with pytest.raises(OSError, match="ann/nothing") as error:
        load(AutoTokenizer, "ann/nothing")
    assert "\n" not in str(error.value)


def test_an_adapter_is_no_model_of_its_own(folder, tmp_path):
    edit(folder / "adapter_config.json", base_model_name_or_path=str(tmp_path), peft_type="LORA")
    with pytest.raises(ValueError, match="holds an adapter; merge it"):
        load(AutoConfig, folder)
    assert load(AutoTokenizer, folder)


def test_a_folder_cannot_say_that_the_package_has_no_code(folder, words, tmp_path):
    edit(folder / "config.json", auto_map={"AutoModelForMaskedLM": "x/y--evil.Evil"})
    main(words("export", folder))
    assert (tmp_path / "out" / "modeling_par_bert.py").exists()
    assert "evil" not in (tmp_path / "out" / "config.json").read_text()


def test_values_that_a_configuration_refuses_are_one_sentence(folder, refuse):
    edit(folder / "config.json", hidden_size="wide")
    refuse("glue", folder, "hidden_size")
    edit(folder / "config.json", hidden_size=32)
    file = folder / "model.safetensors"
    whole, weights = file.read_bytes(), load_file(file)
    save_file({name: torch.ones(3) for name in weights}, file, {"format": "pt"})
    for damaged in (file.read_bytes(), b"", whole[:50], b"x" * 99):
        file.write_bytes(damaged)
        refuse("export", folder, f"{folder} is damaged")
