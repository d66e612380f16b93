import json
import signal
import subprocess
import sys
import warnings

import datasets
import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer

from sublayers.training import cli
from sublayers.training.pretrain import pretrain

TINY = {
    "sublayer_order": "s(sf)f",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "dropout": 0.1,
    "block_size": 16,
    "tokenizer_model": "byte",
    "max_steps": 4,
    "use_cpu": True,
    "disable_tqdm": True,
}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    # threads that wait for each other make tiny models slow, and their number decides on the last bits
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"line {n} of a tiny corpus\n" for n in range(60)))
    return str(path)


@pytest.fixture
def settings(tmp_path, corpus):
    path = tmp_path / "settings.yaml"
    path.write_text(json.dumps({**TINY, "train_file": corpus}))
    return str(path)


def test_trains_evaluates_and_leaves_everything_behind(tmp_path, settings, corpus, capsys):
    out = tmp_path / "out"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        flags = ["--max_steps", "6", "--learning_rate", "1e-2", "--use_cpu", "false"]
        metrics = pretrain([settings, "--output_dir", str(out), *flags])
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.sublayer_order == "s2f2"
    assert model.config.use_cache
    assert (model.config.max_position_embeddings, model.config.vocab_size) == (16, 259)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer("a\n é").input_ids) == "a\n é"
    curve = json.loads((out / "loss_curve.json").read_text())
    assert [step for step, _ in curve["loss"]] == [step for step, _ in curve["eval_loss"]] == [1, 2, 3, 4, 5, 6]
    assert curve["eval_loss"][-1][1] < curve["eval_loss"][0][1]
    assert min(Image.open(out / "loss_curve.png").size) > 400
    saved = json.loads((out / "all_results.json").read_text())
    assert saved["eval_loss"] == metrics["eval_loss"] == curve["eval_loss"][-1][1]
    printed = capsys.readouterr().out.splitlines()[-1]
    for name in ("eval_loss", "eval_perplexity", "eval_bits_per_byte", "eval_bits_per_character"):
        assert f"{name} {metrics[name]:.4f}" in printed

    # more context than blocks give can only come from other windows
    common = ["--do_eval", "--model_name_or_path", str(out), "--train_file", corpus, "--block_size", "16"]
    again = pretrain([*common, "--output_dir", str(tmp_path / "again")])
    assert again["eval_loss"] == metrics["eval_loss"]
    assert not (tmp_path / "again" / "model.safetensors").exists()
    more = pretrain([*common, "--output_dir", str(tmp_path / "more"), "--context_window", "12"])
    assert more["eval_loss"] != again["eval_loss"]


def test_a_stream_trains_and_a_checkpoint_goes_on(tmp_path, settings, corpus):
    pretrain([settings, "--streaming", "--validation_file", corpus, "--output_dir", str(tmp_path / "a"), "--do_train"])
    assert not (tmp_path / "a" / "eval_results.json").exists()
    start = ["--model_name_or_path", str(tmp_path / "a"), "--dropout", "0", "--output_dir", str(tmp_path / "b")]
    metrics = pretrain(
        ["--train_file", corpus, *start, "--block_size", "16", "--max_steps", "2", "--disable_tqdm", "true"]
    )
    assert metrics["eval_loss"] > 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "b").config.dropout == 0


BAD = {
    "an unknown key": (["--blok_size", "8"], "unknown option 'blok_size', did you mean 'block_size'?"),
    "an unknown family": (["--model_type", "gpt2"], "unknown model_type 'gpt2'; choose from sandwich_lm"),
    "a bad order": (["--sublayer_order", "sqf"], "sqf"),
    "a bad number": (["--block_size", "many"], "invalid int value: 'many'"),
    "a bad schedule": (["--lr_scheduler_type", "cosin"], "cosin is not a valid SchedulerType"),
    "a bad size": (["--num_attention_heads", "3"], "hidden_size=16 is not a multiple of num_attention_heads=3"),
    "too long a block": (["--max_position_embeddings", "8"], "block_size=16 is more than the model's max_position"),
    "too long a context": (["--context_window", "16"], "context_window=16 should be at least 0 and less than block_s"),
    "a missing column": (["--train_file", "{rows}", "--text_column", "body"], "no column 'body'; choose one of text"),
    "no text": (["--train_file", "{blank}"], "blank.txt holds no text"),
    "an endless stream": (["--streaming", "--max_steps", "-1"], "give --max_steps with --streaming"),
    "no checkpoint": (["--resume_from_checkpoint", "nowhere"], "nowhere is no complete checkpoint"),
    "no model to evaluate": (["--do_eval", "--resume_from_checkpoint"], "give --model_name_or_path"),
    "a bad dropout": (["--dropout", "7"], "dropout"),
    "too small a vocabulary": (["--tokenizer_model", "bpe", "--vocab_size", "9"], "vocab_size=9 is less than the 256"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case, tmp_path, settings, capsys):
    (tmp_path / "blank.txt").write_text("\n\n")
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    flags, message = BAD[case]
    paths = {"rows": tmp_path / "rows.jsonl", "blank": tmp_path / "blank.txt"}
    flags = [flag.format(**paths) for flag in flags]
    with pytest.raises(SystemExit) as stopped:
        cli.main(["pretrain", settings, "--output_dir", str(tmp_path / "out"), *flags])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.count("sublayers pretrain: ") == 1
    assert message in said
    assert "Traceback" not in said
    # nothing is in the way of the corrected command
    assert not (tmp_path / "out").exists()


def test_an_unknown_key_of_a_settings_file_and_a_full_folder(tmp_path, settings):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="out is not empty; choose another folder or continue with --resume"):
        pretrain([settings, "--output_dir", str(out)])
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("hiden_size: 16\n")
    with pytest.raises(ValueError, match="unknown option 'hiden_size', did you mean 'hidden_size'"):
        pretrain([str(wrong)])


# a run that gets SIGKILL while it writes its checkpoint of step 6, after the weights and before the Trainer's state
KILLED = """
import os, signal, sys
from transformers import Trainer
from sublayers.training import cli

def die(trainer, folder):
    if trainer.state.global_step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    save(trainer, folder)

save, Trainer._save_rng_state = Trainer._save_rng_state, die
cli.main(sys.argv[1:])
"""


def test_a_killed_run_resumes_to_the_same_weights(tmp_path, settings, capsys):
    flags = ["pretrain", settings, "--max_steps", "8", "--save_steps", "2", "--eval_steps", "3", "--output_dir"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run = subprocess.run([sys.executable, "-c", KILLED, *flags, str(killed)], capture_output=True)
    assert run.returncode == -signal.SIGKILL
    assert (killed / "checkpoint-6" / "model.safetensors").exists()
    assert not (killed / "model.safetensors").exists()

    with pytest.raises(ValueError, match="has hidden_size=16, not 32; continue with the flags"):
        pretrain([*flags[1:], str(killed), "--resume_from_checkpoint", "--hidden_size", "32"])
    cli.main([*flags, str(killed), "--resume_from_checkpoint"])
    assert f"continuing from {killed / 'checkpoint-4'}" in capsys.readouterr().out
    cli.main([*flags, str(whole)])
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    curves = [json.loads((folder / "loss_curve.json").read_text()) for folder in (killed, whole)]
    assert curves[0] == curves[1]


def test_a_checkpoint_with_half_a_state_is_passed_over(tmp_path, settings, capsys, caplog):
    flags = [settings, "--max_steps", "4", "--save_steps", "2", "--output_dir", str(tmp_path / "out")]
    pretrain(flags)
    (tmp_path / "out" / "checkpoint-4" / "trainer_state.json").write_text('{"epoch": 1.')
    pretrain([*flags, "--resume_from_checkpoint", "true"])
    said = capsys.readouterr()
    assert f"continuing from {tmp_path / 'out' / 'checkpoint-2'}" in said.out
    assert "do not match" not in caplog.text
    # a path names one checkpoint, complete or not
    with pytest.raises(FileNotFoundError, match="is no complete checkpoint"):
        pretrain([*flags, "--resume_from_checkpoint", str(tmp_path / "out")])


def test_resuming_without_a_checkpoint_starts_from_the_beginning(tmp_path, settings, capsys):
    flags = [settings, "--output_dir", str(tmp_path / "out"), "--max_steps", "1", "--resume_from_checkpoint"]
    pretrain(flags)
    assert "no complete checkpoint" in capsys.readouterr().out
    assert (tmp_path / "out" / "model.safetensors").exists()
