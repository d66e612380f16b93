import zlib
from lzma import LZMAError

import pytest
from launched import python
from safetensors import SafetensorError

from sublayers.training import cli
from sublayers.training.flags import expand_settings_file


def test_lists_its_commands(capsys):
    for argv in ([], ["--help"], ["-h"]):
        cli.main(argv)
        listed = capsys.readouterr().out
        assert all(f"  {name} " in listed and purpose in listed for name, (_, purpose) in cli.COMMANDS.items())


def test_runs_as_a_module_and_refuses_an_unknown_command():
    done = python("-m", "sublayers", "pretrian", check=False)
    assert done.returncode == 2
    # torchao, where it is installed, says before this what it could not load
    *others, said = done.stderr.splitlines()
    assert said.startswith("sublayers: unknown command 'pretrian', did you mean 'pretrain'?; choose from order,")
    assert all("torchao" in line or "torch/" in line for line in others)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help_of_a_screen_or_two(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command.split(), "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: sublayers {command}" in shown
    assert len(shown.splitlines()) < 110


@pytest.mark.parametrize("command", ["pretrain", "seq2seq"])
def test_help_shows_a_commands_own_flags_and_help_all_those_of_trainer_and_model_too(command, capsys):
    own, others = ("--train_file", "--learning_rate", "--vocab_size"), ("--adam_beta1", "--bf16", "--hidden_size")
    for option, hidden in (("--help", True), ("--help_all", False)):
        with pytest.raises(SystemExit) as stopped:
            cli.main([command, option])
        assert stopped.value.code == 0
        shown = capsys.readouterr().out
        assert all(flag in shown for flag in own)
        assert all((flag not in shown) == hidden for flag in others)


@pytest.mark.parametrize(
    "kind", [ValueError, FileNotFoundError, SafetensorError, Exception, EOFError, LZMAError, zlib.error]
)
def test_bad_input_and_the_errors_of_files_that_libraries_have_are_one_sentence(kind, monkeypatch, refusal):
    def fail(args):
        raise kind("the file is damaged")

    monkeypatch.setattr("sublayers.training.commands.tokenizer.load_corpus", fail)
    assert refusal("tokenizer", "--output_dir", "unused") == "sublayers tokenizer: the file is damaged\n"


def test_dashes_and_underscores_are_the_same_in_flags_and_differ_in_values(monkeypatch):
    given = []
    monkeypatch.setattr("sublayers.training.commands.results.main", given.extend)
    argv = ["--output-dir=a-b", "--train-file", "c-d", "--pretraining_flags", "--block_size 8 --norm-type rms-norm"]
    cli.main(["results", *argv])
    assert given == ["--output_dir=a-b", "--train_file", *argv[2:]]


def test_a_programming_error_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("sublayers.training.commands.tokenizer.load_corpus", lambda args: {}["train"])
    with pytest.raises(KeyError):
        cli.main(["tokenizer", "--output_dir", "unused"])


@pytest.mark.parametrize("name", ["run.yaml", "run.json"])
def test_a_settings_file_becomes_flags_that_later_ones_override(tmp_path, name):
    path = tmp_path / name
    path.write_text(
        '{"learning_rate": 1e-3, "do_eval": true, "max_steps": -1, "run_name": null, "label_names": ["a", "b"], '
        '"fsdp_config": {"x": 1}}'
    )
    flags = ["--learning_rate=1e-3", "--do_eval=True", "--max_steps=-1", "--label_names", "a", "b"]
    flags += ['--fsdp_config={"x": 1}', "--max_steps", "7"]
    assert expand_settings_file([str(path), "--max_steps", "7"], "pretrain") == flags


@pytest.mark.parametrize(("text", "message"), [("- a\n- b\n", "should map options"), ("a: [", "cannot be read")])
def test_a_settings_file_of_another_shape_is_refused(tmp_path, text, message):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        expand_settings_file([str(path)], "pretrain")
