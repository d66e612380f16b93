import json

import pytest
import torch

from sublayers import SandwichLMConfig, SandwichLMForCausalLM
from sublayers.training import cli
from sublayers.training.data.tokenizers import train_tokenizer
from sublayers.training.lab.attention_distance import main
from sublayers.training.lab.attention_weights import attention_distances, attention_weights, read_windows

SIZES = {"vocab_size": 259, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
TEXT = "the quick brown fox jumps over the lazy dog\n" * 3
SHORT = ["--tokens", "16", "--window", "8"]


def save(folder, order, seed, tokenizer=None, **settings):
    torch.manual_seed(seed)
    config = SandwichLMConfig(sublayer_order=order, initializer_range=1.0, **SIZES | settings)
    SandwichLMForCausalLM(config).save_pretrained(folder)
    (tokenizer or train_tokenizer([], "byte", 0)).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [save(folder / str(seed), order, seed) for seed, order in enumerate(["(sf)2", "(sf)2", "s2f2"])]


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return ["--text", str(tmp_path / "text.txt")]


def test_compares_models_and_leaves_numbers_and_pictures(models, text, tmp_path, capsys):
    output = tmp_path / "found"
    found = main([*models, *text, *SHORT, "--output_dir", str(output)])
    printed = capsys.readouterr().out

    loaded = [SandwichLMForCausalLM.from_pretrained(folder, attn_implementation="eager").model for folder in models]
    windows = read_windows([TEXT], train_tokenizer([], "byte", 0), 2, 8)
    expected = attention_distances([attention_weights(model, windows) for model in loaded])
    for metric in ("value", "position"):
        distances = found[metric]["distances"]
        assert distances == expected[metric].tolist()
        between = (distances[0][2], distances[1][2])
        means = {"(sf)2 - (sf)2": distances[0][1], "(sf)2 - s2f2": sum(between) / 2}
        assert found[metric]["means"] == pytest.approx(means)
        deviation = abs(between[0] - between[1]) / 2**0.5
        assert found[metric]["deviations"] == pytest.approx({"(sf)2 - s2f2": deviation})
        assert f"(sf)2 - s2f2: {sum(between) / 2:.4g} ± {deviation:.2g}" in printed
        assert (output / f"{metric}.svg").stat().st_size
    assert found["kinds"] == ["(sf)2", "(sf)2", "s2f2"]
    assert json.loads((output / "results.json").read_text()) == found
    with pytest.raises(FileExistsError, match="is not empty"):
        main([*models, *text, "--output_dir", str(output)])


def test_a_model_twice_is_no_distance_from_itself_and_nothing_is_written(models, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = main([models[0], models[0], *text, *SHORT])
    assert (
        found["value"]
        == found["position"]
        == {
            "distances": [[0, 0], [0, 0]],
            "means": {"(sf)2 - (sf)2": 0},
            "deviations": {},
        }
    )
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_reads_the_standard_library_by_default(models):
    found = cli.run(["attention-distance", *models[1:], *SHORT])
    assert found["text"].startswith("the standard library of Python 3")
    assert [*found["value"]["means"]] == ["(sf)2 - s2f2"]


def test_what_cannot_be_compared_is_refused(models, text, tmp_path):
    cases = [
        ([], ["--tokens", "16"], "has nothing to be compared with"),
        (models[1:2], ["--tokens", "20", "--window", "8"], "--tokens=20 is not a multiple of --window=8"),
        ([save(tmp_path / "short", "(sf)2", 0, max_position_embeddings=4)], SHORT, "give a smaller --window"),
        ([save(tmp_path / "more", "(sf)3", 0)], SHORT, "have 2, 3 self-attention sublayers"),
        ([save(tmp_path / "char", "(sf)2", 0, train_tokenizer([TEXT], "char", 99))], SHORT, "share a tokenizer"),
    ]
    for others, flags, message in cases:
        with pytest.raises(ValueError, match=message):
            main([models[0], *others, *text, *flags])
