import json
from pathlib import Path

import pytest
import torch

from sublayers import MacaronBertConfig, MacaronBertForPreTraining, PARBertConfig, PARBertForPreTraining
from sublayers.training.commands import glue, pretrain, squad
from sublayers.training.lab.studies import bert as study
from sublayers.training.results import read

pytestmark = pytest.mark.slow

COMMANDS = {"pretrain": pretrain, "glue": glue, "squad": squad}
CONFIGS = {
    "par_bert": (PARBertConfig, PARBertForPreTraining),
    "macaron_bert": (MacaronBertConfig, MacaronBertForPreTraining),
}


@pytest.fixture
def commands(monkeypatch):
    """The three commands, replaced by what they leave behind; the scores tell the models apart."""
    calls = []

    def read(command, argv):
        words = [word for flag in argv for word in flag.removeprefix("--").split("=", 1)]
        flags = dict(zip(words[::2], words[1::2], strict=True))
        calls.append((command, flags))
        return flags

    def leave(flags, name, results):
        folder = Path(flags["output_dir"])
        folder.mkdir(parents=True, exist_ok=True)
        assert not (folder / name).exists()
        (folder / name).write_text(json.dumps(results))
        # which a command writes last
        (folder / "run.json").write_text("{}")

    def pretrain(argv):
        flags = read("pretrain", argv)
        config_class, model_class = CONFIGS[flags["model_type"]]
        sizes = {name: int(flags[name]) for name in ("hidden_size", "intermediate_size", "num_attention_heads")}
        config = config_class(sublayer_order=flags["sublayer_order"], vocab_size=20, max_position_embeddings=8, **sizes)
        model_class(config).save_pretrained(flags["output_dir"])
        leave(flags, "all_results.json", {"eval_loss": 5.0})

    def glue(argv):
        flags = read("glue", argv)
        score = 0.25 * int(flags["seed"]) + (0.5 if "par_bert" in flags["output_dir"] else 0.125)
        found = {"metric": "accuracy", "best": {"median": score, "runs": []}}
        leave(flags, "results.json", {flags["task_name"]: found})

    def squad(argv):
        leave(read("squad", argv), "all_results.json", {"eval_f1": 25.0, "eval_exact_match": 12.5})

    for name, command in {"pretrain": pretrain, "glue": glue, "squad": squad}.items():
        monkeypatch.setattr(COMMANDS[name], "main", command)
    return calls


@pytest.fixture
def flags(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("some words to begin with\n" * 40)
    return [
        *("--output_dir", str(tmp_path / "study"), "--train_file", str(corpus), "--glue_dir", "glue"),
        *("--models", "bert", "par_bert", "--tasks", "sst2", "--squad_train_file", "train.json"),
        *("--hidden_size", "16", "--num_attention_heads", "2"),
    ]


def test_trains_each_model_once_with_the_same_flags_and_reports(commands, flags, tmp_path, capsys):
    found = study.main([*flags, "--seeds", "0", "1"])
    assert [name for name, _ in commands] == ["pretrain", "glue", "squad"] * 4
    pretrained = [given for name, given in commands if name == "pretrain"]
    assert [given["sublayer_order"] for given in pretrained] == ["(sf)12", "(sff)5f9"] * 2
    assert [given["seed"] for given in pretrained] == ["0", "0", "1", "1"]
    own = {"sublayer_order", "intermediate_size", "seed", "output_dir"}
    assert len({tuple(sorted((k, v) for k, v in given.items() if k not in own)) for given in pretrained}) == 1
    assert found["par_bert"]["1"]["tasks"]["sst2"]["score"] == 0.75
    row = read(tmp_path / "study" / "results.csv")[1]
    assert (row["model"], row["order"], row["seeds"]) == ("par_bert", "(sff)5f9", "0, 1")
    # accuracy 50 and 75, F1 25: the means of both runs are 37.5 and 50
    figures = ("sst2 (accuracy)", "sst2 (accuracy) ±", "squad (f1)", "squad (f1) ±", "mean", "mean ±")
    assert [row[name] for name in figures] == ["62.5", "17.7", "25.0", "0.0", "43.8", "8.8"]
    # the cost is relative to BERT of the same width
    assert found["bert"]["0"]["cost"] == 1
    assert 0 < (cost := found["par_bert"]["0"]["cost"]) < 0.6
    assert (row["pre-training loss (nats)"], row["cost of classifying"]) == ("5.00", f"{cost:.2f}")
    assert row["data"] == "corpus.txt, GLUE sst2, SQuAD"
    assert row["command"].startswith("sublayers study bert --output_dir")
    assert "62.5 ± 17.7 | 25.0 ± 0.0 | 43.8 ± 8.8 |" in capsys.readouterr().out
    assert "relative to BERT" in (tmp_path / "study" / "quality_against_cost.svg").read_text()
    # what is there is not run again, and what is new joins it
    commands.clear()
    more = study.main([*flags, "--seeds", "0", "--models", "bert", "s12f12"])
    assert [given["sublayer_order"] for name, given in commands if name == "pretrain"] == ["s12f12"]
    assert list(more) == ["bert", "par_bert", "s12f12"]


def test_an_order_is_a_model_of_layers_as_wide_as_berts(commands, flags, tmp_path):
    found = study.main([*flags, "--models", "sfsfmfmf", "bert"])
    pretrained = [given for name, given in commands if name == "pretrain"]
    assert [given["sublayer_order"] for given in pretrained] == ["(sf)2(mf)2", "(sf)12"]
    assert [given["intermediate_size"] for given in pretrained] == ["64"] * 2
    assert 0 < found["sfsfmfmf"]["0"]["cost"] < 0.25
    rows = {row["model"]: row["kind"] for row in read(tmp_path / "study" / "results.csv")}
    assert rows == {"bert": "plain", "sfsfmfmf": "attending tail"}


def test_a_killed_study_keeps_what_was_finished(commands, flags, monkeypatch, tmp_path):
    def killed(argv):
        (tmp_path / "study" / "bert-0" / "squad" / "half").mkdir(parents=True)
        raise KeyboardInterrupt

    finished = squad.main
    monkeypatch.setattr(squad, "main", killed)
    with pytest.raises(KeyboardInterrupt):
        study.main(flags)
    monkeypatch.setattr(squad, "main", finished)
    commands.clear()
    study.main(flags)
    assert [name for name, _ in commands] == ["pretrain", "glue", "squad", "squad"]
    # where it was killed it goes on
    assert commands[-1][1]["resume_from_checkpoint"] == "true"
    assert not any("resume_from_checkpoint" in given for _, given in commands[:-1])


def test_models_have_the_same_number_of_parameters():
    totals = {}
    for name, studied in study.MODELS.items():
        if studied.width is not None:
            continue
        config_class, model_class = CONFIGS[studied.model_type]
        sizes = dict(zip(("hidden_size", "intermediate_size"), studied.sizes(128, 4), strict=True))
        sizes |= {"vocab_size": 8192, "num_attention_heads": 4, "position_embedding_type": "sinusoidal"}
        with torch.device("meta"):
            totals[name] = model_class(config_class(sublayer_order=studied.order, **sizes)).num_parameters()
    assert max(totals.values()) < 1.02 * min(totals.values()), totals


@pytest.mark.parametrize("hidden_size", [128, 256, 768])
def test_controls_cost_what_attention_first_costs(hidden_size):
    assert all(studied.sizes(hidden_size, 4)[0] % 4 == 0 for studied in study.MODELS.values())
    costs = {name: studied.cost(hidden_size, 4) for name, studied in study.MODELS.items()}
    for control, order in (("5_layers", "s12f12"), ("narrow_s12f12", "s12f12"), ("narrow_s5f19", "s5f19")):
        assert costs[control] == pytest.approx(costs[order], rel=0.2)
    # no number of layers costs as little
    assert costs["2_layers"] < costs["s5f19"] < costs["3_layers"]


def test_an_unknown_model_is_one_sentence(flags):
    with pytest.raises(ValueError, match=r"unknown model 'gpt'; choose from bert, par_bert.*, or write an order"):
        study.main([*flags, "--models", "gpt"])


def test_the_recipe_has_flags_that_the_other_commands_know(commands, flags, monkeypatch):
    for module in COMMANDS.values():
        monkeypatch.setattr(module, "main", lambda argv, m=module, c=module.main: (m.parse(argv), c(argv))[1])
    study.main(["bert_study", *flags[: flags.index("--hidden_size")]])
    assert [given["hidden_size"] for name, given in commands if name == "pretrain"] == ["128"] * 2
