import json
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from sublayers import expand, random_balanced
from sublayers.configuration.sublayer_cost import flops
from sublayers.training import cli
from sublayers.training.commands import pretrain
from sublayers.training.lab.search import run_supernet
from sublayers.training.lab.search.runs import fitting_flags
from sublayers.training.results import read
from sublayers.training.trials import TrialState, read_study, results

pytestmark = pytest.mark.slow

RUN = {"max_steps": 4, "save_strategy": "no", "eval_strategy": "no", "report_to": "none", "use_cpu": True}
TINY = RUN | {"disable_tqdm": True, "hidden_size": 16, "intermediate_size": 64, "num_attention_heads": 2}
LM = TINY | {"train_file": "corpus.txt", "sublayer_order": "(sf)3", "block_size": 24, "per_device_train_batch_size": 4}
PAIRS = TINY | {
    "task": "translation",
    "source": "de",
    "target": "en",
    "predict_with_generate": False,
    "vocab_size": 270,
}
PAIRS |= {"train_file": "pairs.jsonl", "validation_file": "pairs.jsonl", "model_type": "sandwich_seq2seq"}
PAIRS |= {"encoder_sublayer_order": "sf", "decoder_sublayer_order": "scf"}
SETTINGS = {"pairs": PAIRS, "lm": LM | {"tokenizer_model": "byte"}, "bert": LM | {"objective": "mlm", "vocab_size": 80}}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "corpus.txt").write_text("".join(f"line {n} of a tiny corpus\n" for n in range(60)))
    pairs = [{"translation": {"de": f"Ein Hund und {n}", "en": f"A dog and {n}"}} for n in range(20)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    for name, settings in SETTINGS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(settings))


def search(*words):
    return cli.run(["search", *words])


def supernets(folder):
    """What the super-networks of a search found."""
    return [trial.user_attrs for trial in results(read_study("super-networks", folder))]


@pytest.mark.full
def test_ranks_random_orders_and_goes_on_where_it_stopped(tmp_path, capsys, monkeypatch):
    # where a bar moves
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    first = search("random", "pretrain", "lm.json", "--number", "2", "--output_dir", "found", "--length", "24")
    assert first["order"].tolist() == [random_balanced(3, seed) for seed in (0, 1)]
    flags = ["--number=3", "--seeds", "0", "1", "--jobs", "2", "--output_dir", "found", "--length", "24"]
    capsys.readouterr()
    rows = search("random", "pretrain", "lm.json", *flags)
    shown = capsys.readouterr()
    assert "rank correlation of 3 orders between two seeds" in shown.out
    assert "2/6" in shown.err
    assert "best so far" in shown.err
    assert len(rows) == 6
    assert sorted(zip(rows["seed"], rows["order"], strict=True)) == sorted(
        (seed, order) for seed in (0, 1) for order in {*rows["order"]}
    )
    for order, seed in zip(rows["order"], rows["draw_seed"], strict=True):
        assert order == random_balanced(3, seed)
    assert rows["loss"].tolist()[:2] == first["loss"].tolist()
    assert {"flops_all", "flops_masked", "flops_one", "milliseconds_all", "milliseconds_one"} <= {*rows}
    assert (rows["bottom_half_s"] + rows["top_half_s"] == 3).all()
    folder = tmp_path / "found"
    figures = read(folder / "results.csv")
    means = rows.groupby("order")["perplexity"].mean().sort_values()
    assert [(row["order"], row["perplexity"]) for row in figures] == [
        (order, f"{value:.2f}") for order, value in means.items()
    ]
    assert {row["command"].split(" --")[0] for row in figures} == {"sublayers search random pretrain lm.json"}
    pictures = {name: (folder / f"{name}.svg").read_text() for name in ("orders", "bottom_half", "cost")}
    for name in pictures:
        (folder / f"{name}.svg").unlink()
    (folder / "runs").rename(tmp_path / "elsewhere")
    again = search("report", "found")
    pd.testing.assert_frame_equal(again, rows)
    assert read(folder / "results.csv") == figures
    for name, picture in pictures.items():
        # matplotlib numbers what it defines by chance
        assert len((folder / f"{name}.svg").read_text()) == pytest.approx(len(picture), abs=50)
    with pytest.raises(FileExistsError, match="has a search with flags"):
        search("random", "pretrain", "lm.json", "--output_dir", "found", "--weight_decay", "0.5")


def test_ranks_orders_of_a_file_with_local_attention_and_without(tmp_path):
    (tmp_path / "orders.txt").write_text("s3f3\nwfwfsf\n")
    flags = ["--sublayer_order", "(sfw)2", "--attention_window", "6", "--local_rope_theta=100.0"]
    flags += ["--position_embedding_type", "rotary", "--length", "24", "--output_dir", "found"]
    rows = search("random", "pretrain", "bert.json", *flags, "--orders", "orders.txt", "--baseline")
    assert rows["order"].tolist() == ["(sfw)2", "s3f3", "(wf)2sf"]
    assert rows["names"].tolist() == ["baseline", "s3f3", "wfwfsf"]
    # they are ranked by masked words
    assert (rows["flops_one"] < rows["flops_all"]).all()
    trained = [AutoConfig.from_pretrained(f"found/runs/{order}-0") for order in rows["order"]]
    assert [(config.attention_window, config.local_rope_theta) for config in trained] == [
        (6, 100.0),
        (None, None),
        (6, 100.0),
    ]


def test_ranks_orders_that_lack_letters_which_others_have(tmp_path):
    (tmp_path / "orders.txt").write_text("rf\nse\nsf\n")
    flags = ["--sublayer_order", "srfe", "--recurrence", "gated_delta", "--num_experts", "2", "--length", "24"]
    flags += ["--num_experts_per_tok=1", "--moe_intermediate_size", "8", "--norm_topk_prob", "true"]
    rows = search("random", "pretrain", "lm.json", *flags, "--orders", "orders.txt", "--output_dir", "found")
    assert rows["order"].tolist() == ["rf", "se", "sf"]
    trained = [AutoConfig.from_pretrained(f"found/runs/{order}-0") for order in rows["order"]]
    assert [(config.recurrence, config.num_experts, config.norm_topk_prob) for config in trained] == [
        ("gated_delta", None, False),
        (None, 2, True),
        (None, None, False),
    ]


def test_flags_that_the_other_stack_needs_are_kept():
    flags = ["--encoder_sublayer_order=wf", "--attention_window", "6", "--local_rope_theta=9.0", "--seed", "1"]
    assert fitting_flags(flags, {"decoder_sublayer_order": "scf"}) == flags
    kept = ["--encoder_sublayer_order=wf", "--seed", "1"]
    assert fitting_flags(flags, {"encoder_sublayer_order": "sf"}) == kept


@pytest.mark.parametrize("kind", ["random", "supernet"])
def test_searches_orders_of_models_with_memory(kind, tmp_path):
    flags = ["--model_type", "par_transformer_xl", "--memory_length", "8", "--length", "24", "--output_dir", "found"]
    flags += ["--number", "2"] if kind == "random" else ["--random", "1", "--architecture_update_share", "1"]
    rows = search(kind, "pretrain", "lm.json", *flags)
    trained = [AutoConfig.from_pretrained(f"found/runs/{order}-0") for order in rows["order"]]
    assert {config.model_type for config in trained} == {"par_transformer_xl"}
    if kind == "supernet":
        [found] = supernets(tmp_path / "found")
        assert found["order"] in {*rows["order"]}
        assert found["curve"][-1]["probabilities"] != [[0.3333] * 3] * 6


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.full
def test_searches_a_stack_of_an_encoder_decoder(tmp_path, stack):
    found = tmp_path / "found"
    flags = ["seq2seq", "pairs.json", "--stack", stack, "--length", "12", "--output_dir", str(found)]
    rows = search("supernet", *flags, "--random", "1", "--budget", "0.9", "--cost", "parameters")
    event = supernets(found)[0]
    assert {*expand(event["order"])} <= {*("sf" if stack == "encoder" else "scf")}
    layers = 2 if stack == "encoder" else 3
    assert len(event["curve"][-1]["probabilities"]) == layers
    names = ", ".join(rows["names"])
    for name in ("found 0", "interleaved", "sandwich", "random"):
        assert name in names
    assert "par" not in names or stack == "encoder"
    trained = AutoModelForSeq2SeqLM.from_pretrained(found / "runs" / f"{event['order']}-0")
    assert getattr(trained.config, f"{stack}_sublayer_order") == event["order"]
    other = "decoder" if stack == "encoder" else "encoder"
    assert getattr(trained.config, f"{other}_sublayer_order") == ("scf" if stack == "encoder" else "sf")


@pytest.mark.full
def test_searches_with_several_seeds_and_within_a_budget(tmp_path, capsys):
    flags = ["--search_seeds", "0", "1", "--only_search", "--cost", "flops", "--read", "one", "--budget", "0.9"]
    flags += ["--output_dir", "found", "--length", "24", "--temperatures", "2", "0.5"]
    search("supernet", "pretrain", "bert.json", *flags)
    events = supernets(tmp_path / "found")
    assert [event["task"] for event in events] == [{"seed": 0}, {"seed": 1}]
    table = read_study("search", tmp_path / "found").user_attrs["price"]
    for event in events:
        letters = expand(event["order"])
        last = len(letters.rstrip("f")) - 1
        cost = sum(table["full" if i < last else "read"][letter] for i, letter in enumerate(letters))
        full = 2 * (table["full"]["s"] + table["full"]["f"])
        assert cost <= 0.9 * (full + table["read"]["s"] + table["read"]["f"])
        assert event["curve"][0]["temperature"] == 2.0
        assert event["metrics"]["train_loss"] > 0
    for picture in ("supernet-0", "supernet-1", "mixtures"):
        assert "<svg" in (tmp_path / "found" / f"{picture}.svg").read_text()
    assert not [*(tmp_path / "found").rglob("*.safetensors")]
    # goes on with what it found
    (tmp_path / "orders.txt").write_text("f6")
    rows = search(
        "supernet", "pretrain", "bert.json", *flags[:3], *flags[4:], "--random", "0", "--orders", "orders.txt"
    )
    assert {"found 0", "f6"} <= {*", ".join(rows["names"]).split(", ")}
    assert len(supernets(tmp_path / "found")) == 2


def cost(order):
    return flops(order, 16, 64, 24, 24, num_attention_heads=2)


@pytest.mark.full
def test_within_a_budget_hopeless_trainings_end_early(tmp_path, capsys):
    (tmp_path / "lm.json").write_text(json.dumps(SETTINGS["lm"] | {"eval_strategy": "steps", "max_steps": 10}))
    storage = f"--storage=sqlite:///{tmp_path}/studies.db"
    flags = ["--number", "6", "--budget", "0.8", "--prune", "--length", "24", "--output_dir", "found", storage]
    rows = search("random", "pretrain", "lm.json", *flags)
    assert all(cost(order) <= 0.8 * cost("(sf)3") for order in rows["order"])
    assert not (tmp_path / "found" / "journal.log").exists()
    trials = read_study("search", tmp_path / "found", storage.partition("=")[2]).trials
    ended = [trial for trial in trials if trial.state == TrialState.PRUNED]
    assert ended
    assert len(rows) + len(ended) == 6
    # where 2, 4 or 8 of the 10 evaluations are done
    assert {max(trial.intermediate_values) for trial in ended} <= {2, 4, 8}
    assert all([*trial.intermediate_values] == [*range(1, 11)] for trial in trials if trial not in ended)
    assert f"{len(ended)} trainings were ended early" in capsys.readouterr().out
    pd.testing.assert_frame_equal(search("report", "found", storage), rows)
    # the same command trains more, one with another budget is refused
    more = search("random", "pretrain", "lm.json", *flags, "--number", "8", "--jobs", "2")
    assert {*more["order"]} >= {*rows["order"]}
    assert len(read_study("search", tmp_path / "found", storage.partition("=")[2]).trials) == 8
    with pytest.raises(FileExistsError, match=r"has a search with budget 0\.8, not 0\.9"):
        search("random", "pretrain", "lm.json", *flags, "--budget", "0.9")


def test_the_recipe_has_the_settings_of_section_2_2():
    args, architecture, space, _ = run_supernet.parse(["pretrain", "par_search_wt103", "--search_seeds", "0", "1"])
    assert (args.output_dir, args.search_seeds, args.only_search) == (Path("runs/par_search_wt103"), [0, 1], True)
    assert vars(architecture) == {
        "warmup_share": 10 / 50,
        "architecture_update_share": 0.2,
        "architecture_learning_rate": 1e-2,
        "architecture_weight_decay": 5e-4,
        "patience": 0.75,
        # FBNet's
        "held_out_share": 0.2,
        "temperatures": [5.0, 0.1],
    }
    assert (space.order, space.config.hidden_size, space.config.memory_length) == ("(sf)16", 512, 192)
    trained = pretrain.parse(space.training.flags)[-1]
    assert (trained.train_batch_size, trained.max_steps) == (128, 50_000)
    assert (trained.learning_rate, trained.weight_decay) == (1e-2, 1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("random pretrain lm.json --budget 0.01", "no order meets a budget of 0.01; the cheapest one needs 0."),
        ("random pretrain lm.json --budget 0.5 --unbalanced", "--budget draws orders of its own; give it without"),
        ("random pretrain lm.json --cost cache", "--cost and --read say what a --budget limits; give one"),
        ("random pretrain lm.json --storage sqlite:////nowhere/a.db", "cannot be read as a storage of Optuna"),
        ("random pretrain lm.json --number 21 --sublayer_order (sf)3", "there seem to be only 20 orders"),
        ("random pretrain lm.json --orders c.txt", "sandwich_lm has no sublayers c .cross-attention. in its"),
        ("random pretrain lm.json --learning_rat 3", "unknown option 'learning_rat', did you mean 'learning_rate'?"),
        ("random pretrain lm.json --model_name_or_path x", "orders are trained from scratch; leave"),
        ("random pretrain lm.json --do_train", "give both --do_train and --do_eval or neither"),
        ("random seq2seq pairs.json --model_type iot_seq2seq", "has no|unknown option"),
        ("supernet pretrain lm.json --budget 0.01", "no order meets a budget of 0.01; the cheapest one needs 0."),
        ("supernet pretrain lm.json --sublayer_order s", "there is nothing to search in the order 's'"),
        ("supernet pretrain lm.json --sublayer_order sfmf", "has m, which attends to what stands in front of all m"),
        ("random pretrain lm.json --intermediate_size 8 16 8", "is for the f of one order, and many are searched"),
        ("supernet pretrain bert.json --model_type macaron_bert", "give --pre_attention_act gelu, as hidden_act is"),
        ("supernet pretrain lm.json --warmup_share 1.5", "warmup_share=1.5 is no share"),
        ("report nowhere", "nowhere holds no search"),
    ],
)
def test_bad_input_is_one_sentence(words, message, tmp_path, capsys):
    (tmp_path / "c.txt").write_text("scf")
    with pytest.raises(SystemExit):
        cli.main(["search", *words.split()])
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert re.search(message, said), said
    assert not [*tmp_path.glob("runs/**/*.safetensors")]
