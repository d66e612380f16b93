import json

from sublayers.training.lab.bench import command as bench

SIZES = {"hidden_size": 16, "heads": 2, "vocab_size": 40, "batch_size": 2, "length": 8, "layers": 2, "repeats": 1}
TINY = ["supernet", *(f"--{name}={value}" for name, value in SIZES.items()), "--device=cpu"]


def test_compares_a_supernetwork_with_plain_models(tmp_path, capsys):
    path = tmp_path / "times.json"
    bench.main([*TINY, "--orders", "(sf)2", "s2f3", f"--json={path}"])
    assert "Ratios are to the plain model" in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert [*written["tasks"]] == ["train step", "architecture step"]
    for task in written["tasks"].values():
        assert [*task["models"]] == ["(sf)2", "supernet of 4", "s2f3", "supernet of 5"]
        assert [*task["models"]["supernet of 4"]["ratios"]] == ["(sf)2"]
        assert task["models"]["supernet of 4"]["peak_bytes"] > 0
    # both candidates of four layers
    parameters = written["totals"]["parameters"]
    embeddings = 40 * 16 + 2 * 16
    assert parameters["supernet of 4"] - embeddings == 2 * (parameters["(sf)2"] - embeddings)
