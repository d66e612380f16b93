import json
import sys
from argparse import Namespace
from importlib.util import find_spec

import pytest
import torch

from sublayers.configuration.sublayer_cost import flops, memory_bytes
from sublayers.training.lab.bench import command as bench, lm, recurrent_lm

SIZES = {
    "layers": 5,
    "hidden_size": 16,
    "heads": 2,
    "vocab_size": 50,
    "batch_size": 2,
    "length": 6,
    "memory_length": 12,
    "clamp_length": 8,
    "train_length": 7,
    "prompt_length": 9,
    "new_tokens": 3,
}
TINY = ["lm", "--memory", *(f"--{name}={value}" for name, value in SIZES.items())]
TINY += ["--repeats=1", "--score_batch_sizes", "1", "2", "--device=cpu"]
TASKS = ["train step 2x7 after 7", "train step 2x6 after 12"]
TASKS += [f"score with {what} {rows}x6" for rows in (1, 2) for what in ("memory", "cache")]
TASKS += ["decode 1x3 after 9"]
OURS = ["sublayers (sf)5", "sublayers (sff)2f4"]
PEERS = ["x-transformers (sf)5", "x-transformers (sff)2f4"]
needs_peer = pytest.mark.skipif(find_spec("x_transformers") is None, reason="x-transformers is not installed")


def models(*orders):
    return recurrent_lm.language_models(Namespace(**SIZES, orders=orders, device=torch.device("cpu"), dtype="float32"))


def run(path, names):
    bench.main([*TINY, f"--json={path}"])
    everything = json.loads(path.read_text())
    assert list(everything["tasks"]) == TASKS
    for task, result in everything["tasks"].items():
        present = [name for name in names if name in OURS or "cache" not in task]
        assert list(result["models"]) == present
        for name, measured in result["models"].items():
            assert min(measured["median_ms"], measured["rate"], measured["peak_bytes"]) > 0
            peers = [OURS[0], name.replace("sublayers", "x-transformers")]
            peers = [peer for peer in peers if peer in present and peer != name]
            assert list(measured["ratios"]) == (peers if name in OURS else [])
    remembered = everything["totals"]["memory of 12 tokens (bytes)"]
    assert remembered == {name: memory_bytes(name.split()[1], 16, 12, bytes_per_number=4) for name in names}
    return everything


def test_without_the_peer(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "x_transformers", None)
    run(tmp_path / "bench.json", OURS)
    assert 'pip install "sublayers[bench]"' in capsys.readouterr().out


@needs_peer
def test_with_the_peer(tmp_path, capsys):
    run(tmp_path / "bench.json", [*OURS, *PEERS])
    assert "pip install" not in capsys.readouterr().out


@needs_peer
def test_peer_has_the_same_matrices_but_for_distances():
    (_, ours), (_, peer) = models("(sff)2f4").values()
    sizes = [
        sorted(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and p.shape[0] > 2 and accept(name))
        for model, accept in (
            (ours, lambda name: "r_proj" not in name),
            (peer, lambda name: "relative_attention_bias" not in name),
        )
    ]
    assert sizes[0] == sizes[1]
    assert not any(m.p for model in (ours, peer) for m in model.modules() if isinstance(m, torch.nn.Dropout))


@needs_peer
@torch.no_grad()
def test_tasks_of_the_peer_do_the_same():
    past, ids = torch.randint(50, (2, 12)), torch.randint(50, (2, 7))
    (_, ours), (_, peer) = models("(sff)2f4").values()
    for make, model in ((recurrent_lm.our_calls, ours), (recurrent_lm.x_transformers_calls, peer)):
        recurrent_lm.remember(model.eval(), 12, None)
        calls = make(model, past, ids, {"decode": past}, 3)
        logits = calls["score with memory"]()
        assert logits.shape == (2, 6, 50)
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        torch.testing.assert_close(calls["loss"](), expected)
        # memory is read
        assert not torch.equal(logits, make(model, past.flip(1), ids, {}, 3)["score with memory"]())
        assert [states.shape for states in calls["memory"]()] == [(2, 12, 16)] * 2
        assert calls["decode"]().shape[1] == (15 if model is ours else 3)


@torch.no_grad()
def test_a_cache_scores_as_memory_does_and_stays_as_long_as_it_is():
    ((_, model),) = [models("(sff)2f4")["sublayers (sff)2f4"]]
    recurrent_lm.remember(model.eval(), 12, None)
    calls = recurrent_lm.our_calls(model, torch.randint(50, (2, 12)), torch.randint(50, (2, 7)), {}, 3)
    torch.testing.assert_close(calls["score with cache"](), calls["score with memory"](), atol=1e-5, rtol=1e-5)
    counted = [recurrent_lm.gigaflops_of(model, calls["score with cache"]) for _ in range(2)]
    assert counted[0] == counted[1]


@torch.no_grad()
def test_counts_what_the_order_says_and_less_where_distances_are_clamped():
    model = models("(sff)2f4")["sublayers (sff)2f4"][1]
    past, ids = torch.randint(50, (1, 12)), torch.randint(50, (1, 7))
    counted = {}
    for clamp_length in (None, 8):
        recurrent_lm.remember(model.eval(), 12, clamp_length)
        call = recurrent_lm.our_calls(model, past, ids, {}, 3)["score with memory"]
        counted[clamp_length] = recurrent_lm.gigaflops_of(model, call) * 1e9
    # keys are 18, and there are distances of 0 to 17
    head = 2 * 6 * 16 * 50
    expected = flops("(sff)2f4", 16, 64, 6, 6, memory_length=12) + head
    assert counted[8] < counted[None] == pytest.approx(expected, rel=0.2)


def test_the_default_orders_are_the_interleaved_one_and_pars():
    assert recurrent_lm.default_orders(Namespace(layers=16)) == ["(sf)16", "(sfff)6f8"]


def test_flags_have_other_defaults_with_memory():
    (module, plain), (other, recurrent) = bench.parse(["lm"]), bench.parse(["lm", "--memory", "--length=9"])
    assert (module, other) == (lm, recurrent_lm)
    assert (plain.vocab_size, plain.length, plain.decode_batch_sizes) == (50_257, 256, [1, 8])
    assert (recurrent.vocab_size, recurrent.length) == (10_000, 9)
    assert (recurrent.memory_length, recurrent.decode_batch_sizes) == (640, [1])
