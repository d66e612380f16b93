import json
import shlex
import sys
from argparse import Namespace
from importlib.util import find_spec
from statistics import median

import pytest
import torch

from sublayers.configuration.sublayer_cost import cache_bytes
from sublayers.training import cli
from sublayers.training.lab.bench import command as bench, lm as bench_lm
from sublayers.training.metrics import timing as measure
from sublayers.training.results import read

SIZES = {
    "layers": 2,
    "hidden_size": 16,
    "heads": 2,
    "vocab_size": 50,
    "batch_size": 2,
    "length": 12,
    "prompt_length": 4,
    "new_tokens": 3,
    "repeats": 3,
}
TINY = ["lm", *(f"--{name}={value}" for name, value in SIZES.items()), "--threads=1", "--device=cpu"]
TASKS = ["train step", "forward", "prefill", "decode 1x3", "decode 8x3"]
OURS = ["sublayers (sf)2", "sublayers s2f2"]
PEERS = ["x-transformers (sf)2", "x-transformers s2f2"]
needs_peer = pytest.mark.skipif(find_spec("x_transformers") is None, reason="x-transformers is not installed")


@pytest.fixture(autouse=True)
def settings_of_torch(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    threads, flags = torch.get_num_threads(), torch.backends.mkldnn.set_flags()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.backends.mkldnn.set_flags(flags[0])


@pytest.fixture
def without_peer(monkeypatch):
    monkeypatch.setitem(sys.modules, "x_transformers", None)


def models(*orders):
    torch.manual_seed(0)
    return bench_lm.language_models(
        Namespace(**SIZES, orders=orders, peer="gpt2", device=torch.device("cpu"), dtype="float32")
    )


def check(path, names):
    everything = json.loads(path.read_text())
    assert list(everything["tasks"]) == TASKS
    for task in everything["tasks"].values():
        assert list(task["models"]) == names
        for name, result in task["models"].items():
            assert len(result["samples_ms"]) == SIZES["repeats"]
            assert result["median_ms"] == median(result["samples_ms"]) > 0
            assert result["rate"] > 0
            assert result["peak_bytes"] > 0
            peers = ["GPT-2", f"x-transformers {name.split()[-1]}"]
            assert list(result["ratios"]) == [p for p in peers if p in names and p != name and name != "GPT-2"]
            for peer, ratio in result["ratios"].items():
                others = task["models"][peer]["samples_ms"]
                assert ratio == median(a / b for a, b in zip(result["samples_ms"], others, strict=True))
    return everything


def test_ratio_is_the_median_within_rounds():
    # the medians themselves, 20 and 10, would give 2
    assert measure.ratio([10, 20, 300], [10, 40, 5]) == 1
    assert measure.ratio([1, 4], [2, 2]) == 1.25


def test_without_the_peer(without_peer, tmp_path, capsys, recwarn):
    path = tmp_path / "bench.json"
    cli.run(["bench", *TINY, f"--json={path}"])
    everything = check(path, ["GPT-2", "sublayers (sf)2", "sublayers s2f2"])
    output, errors = capsys.readouterr()
    assert errors == ""
    assert not recwarn.list
    assert output.count('pip install "sublayers[bench]"') == 1
    assert "x-transformers" not in everything["machine"]
    for text in ("decode 8x3, GB/s", "prefill, peak MiB", "threads 1", "torch ", "layers 2"):
        assert text in output


def test_a_csv_file_has_a_row_for_each_model(without_peer, tmp_path):
    files = [tmp_path / "bench.json", tmp_path / "bench.csv"]
    flags = [*TINY, f"--json={files[0]}", f"--csv={files[1]}"]
    bench.main(flags)
    everything, rows = json.loads(files[0].read_text()), read(files[1])
    assert [(row["model"], row["order"]) for row in rows] == [
        ("GPT-2", ""),
        ("sublayers (sf)2", "(sf)2"),
        ("sublayers s2f2", "s2f2"),
    ]
    for row in rows:
        assert row["parameters"] == str(everything["totals"]["parameters"][row["model"]])
        assert row["cache of 2x12 (bytes)"] == str(everything["totals"]["cache of 2x12 (bytes)"][row["model"]])
        assert row["command"] == shlex.join(["sublayers", "bench", *flags])
        for task in TASKS:
            found = everything["tasks"][task]["models"][row["model"]]
            ratio = found["ratios"].get("GPT-2")
            assert row[f"{task} (ms)"] == f"{found['median_ms']:.1f}"
            assert row[f"{task} (ms) ratio to GPT-2"] == (f"{ratio:.2f}" if ratio else "")
            assert row[f"{task} peak memory (MiB)"] == f"{found['peak_bytes'] / 2**20:.1f}"
    names = [*rows[0]]
    # ratios stand beside their times
    assert names[names.index("prefill (ms)") + 1] == "prefill (ms) ratio to GPT-2"


def test_columns_of_figures_have_no_commas():
    measured = {"median_ms": 1.25, "ratios": {"BART": 0.5}, "peak_bytes": 2**20}
    [row] = measure.rows_of({"greedy 8x32, 32 tokens": {"models": {"a:b": measured}}}, {"size": {"a:b": 7}}, ["a:b"])
    assert [*row.items()] == [
        *(("model", "a:b"), ("order", "a:b"), ("parameters", ""), ("size", "7")),
        *(("greedy 8x32 32 tokens (ms)", "1.2"), ("greedy 8x32 32 tokens (ms) ratio to BART", "0.50")),
        ("greedy 8x32 32 tokens peak memory (MiB)", "1.0"),
    ]


@needs_peer
def test_with_the_peer(tmp_path, capsys):
    path = tmp_path / "bench.json"
    bench.main([*TINY, f"--json={path}"])
    check(path, ["GPT-2", *OURS, *PEERS])
    assert "pip install" not in capsys.readouterr().out


def test_half_precision_and_an_order_of_other_counts(without_peer, tmp_path):
    path = tmp_path / "bench.json"
    bench.main([*TINY, f"--json={path}", "--orders", "s f3", "--dtype=bfloat16", "--no_onednn"])
    everything = check(path, ["GPT-2", "sublayers sf3"])
    assert not torch.backends.mkldnn.enabled
    gpt2, ours = everything["totals"]["cache of 2x12 (bytes)"].values()
    assert gpt2 == 2 * ours == SIZES["batch_size"] * cache_bytes("(sf)2", SIZES["hidden_size"], SIZES["length"])


@pytest.mark.parametrize(("peer", "name"), [("llama", "Llama"), ("qwen3", "Qwen3")])
def test_decoders_of_today(peer, name, tmp_path, capsys):
    path = tmp_path / "bench.json"
    orders = ["--orders", "(sf)2", "sfwf", "--attention_window=4"]
    bench.main([*TINY, f"--json={path}", f"--peer={peer}", *orders])
    everything = json.loads(path.read_text())
    parameters = everything["totals"]["parameters"]
    assert [*parameters] == [name, "sublayers (sf)2", "sublayers sfwf"]
    # the same parts
    assert len({*parameters.values()}) == 1
    for task in everything["tasks"].values():
        ratios = [[*result["ratios"]] for result in task["models"].values()]
        assert ratios == [[], [name], [name]]
    assert f"Ratios are to transformers' {name}" in capsys.readouterr().out.replace("\n", " ")


def test_cache_is_keys_and_values_of_every_attention(tmp_path):
    path = tmp_path / "bench.json"
    bench.main([*TINY, f"--json={path}"])
    # keys and values, attention sublayers, batch, length, hidden size, bytes of a number
    assert set(json.loads(path.read_text())["totals"]["cache of 2x12 (bytes)"].values()) == {2 * 2 * 2 * 12 * 16 * 4}


def test_interleaved_is_gpt2(without_peer):
    (_, gpt2), (_, ours), (_, sandwich) = models("(sf)2", "s2f2").values()
    assert len({sum(p.numel() for p in model.parameters()) for model in (gpt2, ours, sandwich)}) == 1
    assert not any(m.p for model in (gpt2, ours, sandwich) for m in model.modules() if isinstance(m, torch.nn.Dropout))
    ids = torch.randint(SIZES["vocab_size"], (2, SIZES["length"]))
    torch.testing.assert_close(ours.train()(ids).logits, gpt2.train()(ids).logits, atol=1e-5, rtol=0)


@needs_peer
def test_peer_has_the_same_sizes_but_for_biases():
    (_, ours), (_, peer) = list(models("s2f2").values())[1:]
    kinds = {
        name: [p.numel() for p in model.parameters() if p.ndim == 2] for name, model in (("ours", ours), ("peer", peer))
    }
    assert sorted(kinds["ours"]) == sorted(kinds["peer"])
    assert [layer[1].__class__.__name__ for layer in peer.net.attn_layers.layers] == [
        {"s": "Attention", "f": "FeedForward"}[letter] for letter in "ssff"
    ]
    assert not any(m.p for m in peer.modules() if isinstance(m, torch.nn.Dropout))


@needs_peer
def test_tasks_of_the_peer_do_the_same():
    (_, ours), (_, peer) = list(models("(sf)2").values())[1:]
    ids = torch.randint(SIZES["vocab_size"], (2, SIZES["length"]))
    prompts = {"decode": ids[:, :4]}
    for make, model in ((bench_lm.transformers_calls, ours), (bench_lm.x_transformers_calls, peer)):
        calls = make(model.eval(), ids, prompts, new_tokens=3)
        logits = calls["forward"]()
        assert logits.shape == (2, SIZES["length"], SIZES["vocab_size"])
        expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        torch.testing.assert_close(calls["loss"](), expected)
        assert [tensor.shape for tensor in calls["prefill"]()] == [(2, 2, SIZES["length"], 8)] * 4
        assert calls["decode"]().shape[1] == (7 if model is ours else 3)


def test_peak_memory_counts_what_lives_at_once():
    def call():
        first = torch.empty(1000, dtype=torch.uint8)
        del first
        second = torch.empty(3000, dtype=torch.uint8)
        third = torch.empty(500, dtype=torch.uint8)
        return second, third

    assert measure.peak_memory(call, torch.device("cpu")) == 3500
    assert measure.peak_memory(lambda: None, torch.device("cpu")) == 0


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_file_is_never_overwritten(tmp_path, form):
    path = tmp_path / f"bench.{form}"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="choose another file"):
        bench.main([*TINY, f"--{form}={path}"])
    assert path.read_text() == "mine"


def test_bad_input(capsys):
    with pytest.raises(ValueError, match="not a sublayer"):
        bench.main([*TINY, "--orders", "sfq"])
    with pytest.raises(SystemExit):
        bench.main(["lm", "--repeats=0"])
    assert "0 is not a positive number" in capsys.readouterr().err
