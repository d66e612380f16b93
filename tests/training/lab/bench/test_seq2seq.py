import json
from argparse import Namespace

import pytest
import torch

from sublayers.training.lab.bench import command as bench, seq2seq as bench_seq2seq

SIZES = {"layers": 2, "hidden_size": 16, "heads": 2, "vocab_size": 50, "new_tokens": 3}
TINY = ["seq2seq", *(f"--{name}={value}" for name, value in SIZES.items()), "--repeats=1"]
OURS = ["sublayers (sf)2:(scf)2", "sublayers (fsf)2:(fscf)2", "sublayers s(sf)f:(scf)2"]


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")


def arguments(**overrides):
    orders = ["(sf)2:(scf)2", "(fsf)2:(fscf)2"]
    return Namespace(**SIZES, orders=orders, device="cpu", dtype="float32", **{"shapes": ["2x6"]} | overrides)


@pytest.mark.slow
@pytest.mark.full
def test_compares_every_task_at_every_shape_with_all_peers_that_have_it(tmp_path, capsys):
    path = tmp_path / "bench.json"
    bench.main([*TINY, "--orders", "(sf)2:(scf)2", "ssff:(sc)2f2", "--shapes", "2x6", "mixed", f"--json={path}"])
    everything = json.loads(path.read_text())
    tasks = [f"training step {shape}" for shape in ("2x6", "mixed")]
    for shape in ("2x6", "mixed"):
        tasks += [f"encoder {shape}", f"greedy {shape}, 3 tokens", f"beam 5 {shape}, 3 tokens"]
    assert list(everything["tasks"]) == tasks
    for name, task in everything["tasks"].items():
        peers = ["BART", "Marian"] if name.startswith("beam") else ["BART", "Marian", "x-transformers"]
        ours = ["sublayers (sf)2:(scf)2", "sublayers s2f2:(sc)2f2"]
        assert list(task["models"]) == [*peers[:2], *ours, *peers[2:]]
        for model, result in task["models"].items():
            assert list(result["ratios"]) == (peers if model in ours else [])
            assert min(result["median_ms"], result["rate"], result["peak_bytes"]) > 0
    output = capsys.readouterr().out
    for text in ("beam 5 mixed, 3 tokens, GB/s", "training step 2x6, peak MiB", "layers 2"):
        assert text in output


def test_models_have_barts_parameters_whatever_the_order():
    models = bench_seq2seq.encoder_decoders(arguments())
    parameters = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    assert parameters[OURS[0]] == parameters["BART"]
    # two narrow feed-forward sublayers have one bias and one norm more than a wide one
    assert parameters[OURS[1]] == parameters["BART"] + 4 * 3 * SIZES["hidden_size"]


def test_batches_are_padded_as_their_lengths_say():
    batch = bench_seq2seq.make_batch("mixed", arguments())
    assert batch["attention_mask"].sum(1).tolist() == bench_seq2seq.SOURCE_LENGTHS
    assert (batch["input_ids"] == bench_seq2seq.PAD).sum() == (batch["attention_mask"] == 0).sum()
    assert (batch["labels"] != -100).sum(1).tolist() == bench_seq2seq.TARGET_LENGTHS
    with pytest.raises(ValueError, match="'8x' is no shape"):
        bench_seq2seq.read_lengths("8x")


def test_counts_the_work_of_linear_maps():
    model = bench_seq2seq.encoder_decoders(arguments())[OURS[0]].eval()
    ids = torch.ones(2, 6, dtype=torch.long)
    # four projections and two feed-forward maps in each of two layers
    products = 2 * 12 * (4 * 16 * 16 + 2 * 16 * 64)
    with torch.no_grad():
        counted = bench_seq2seq.gigaflops(lambda: model.get_encoder()(ids))
    assert counted == pytest.approx(2 * products / 1e9)


def test_decoding_makes_exactly_the_new_tokens():
    args = arguments()
    for name, model in bench_seq2seq.encoder_decoders(args).items():
        batch = bench_seq2seq.make_batch("2x6", args)
        if name != "x-transformers":
            calls = bench_seq2seq.transformers_calls(model.eval(), batch, 3)
            assert calls["greedy"]().shape == calls["beam 5"]().shape == (2, 4)
