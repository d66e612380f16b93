import json

import pytest
from transformers import AutoModelForSeq2SeqLM

from sublayers.training.lab.studies import seq2seq as study_seq2seq
from sublayers.training.lab.studies.equal_translators import studied
from sublayers.training.results import read

pytestmark = pytest.mark.slow

FLAGS = """
    --task translation --source de --target en --hidden_size 16 --num_attention_heads 2 --vocab_size 280
    --max_source_length 60 --max_target_length 60 --max_tokens 120 --max_steps 2 --eval_steps 1 --save_strategy no
    --report_to none --num_beams 1 --generation_max_length 5 --disable_tqdm true
"""
WORDS = [("Hund", "dog"), ("Katze", "cat"), ("Haus", "house"), ("Baum", "tree")]


@pytest.fixture
def flags(tmp_path):
    rows = [
        {"translation": {"de": f"Ein {a} und ein {b}", "en": f"A {c} and a {d}"}} for a, c in WORDS for b, d in WORDS
    ]
    files = []
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        files.append(f"--{split}_file={tmp_path / split}.jsonl")
    return [*FLAGS.split(), *files, "--intermediate_size=32", f"--output_dir={tmp_path / 'study'}"]


def test_trains_all_models_alike_and_once_and_reports_on_them(flags, tmp_path, capsys, monkeypatch):
    folder, flags = tmp_path / "study", [*flags, "--layers=2"]
    study_seq2seq.main([*flags, "--models", "transformer", "--seeds", "0", "1"])
    found = study_seq2seq.main([*flags, "--models", "macaron", "sandwich_decoder"])
    assert list(found) == ["transformer", "macaron", "sandwich_decoder"]
    assert list(found["transformer"]) == ["0", "1"]
    models = {name: AutoModelForSeq2SeqLM.from_pretrained(folder / f"{name}-0") for name in found}
    for name, model in models.items():
        orders = (model.config.encoder_sublayer_order, model.config.decoder_sublayer_order)
        run = found[name]["0"]
        assert orders == (run["encoder"], run["decoder"]) == (*studied(2)[name].flags.values(),)
        assert run["parameters"] == model.num_parameters()
    assert models["transformer"].num_parameters() == models["sandwich_decoder"].num_parameters()
    assert models["macaron"].config.intermediate_size == 16
    assert models["macaron"].config.feed_forward_scale == 0.5
    first, second, _ = read(folder / "results.csv")
    losses = [run["metrics"]["eval_loss"] for run in found["transformer"].values()]
    assert first["validation loss (nats per token)"] == f"{sum(losses) / 2:.2f}"
    assert first["validation loss (nats per token) ±"] == f"{abs(losses[0] - losses[1]) / 2**0.5:.2f}"
    assert (first["seeds"], first["data"]) == ("0, 1", "train.jsonl, validation.jsonl, test.jsonl")
    assert (second["encoder order"], second["decoder order"]) == ("(fsf)2", "(fscf)2")
    assert second["test BLEU"] == f"{found['macaron']['0']['metrics']['test_bleu']:.2f}"
    assert "| macaron | `(fsf)2` | `(fscf)2` |" in capsys.readouterr().out
    assert "<svg" in (folder / "learning_curves.svg").read_text()
    # what is finished is not run again
    scores = [row["test BLEU"] for row in read(folder / "results.csv")]
    (folder / "sandwich_encoder-0").mkdir()
    (folder / "sandwich_encoder-0" / "left-by-a-killed-run").touch()
    ran = []
    monkeypatch.setattr("sublayers.training.commands.seq2seq.main", ran.append)
    with pytest.raises(ValueError, match="model sandwich_encoder, seed 0 failed"):
        study_seq2seq.main([*flags, "--models", "transformer", "macaron", "sandwich_encoder"])
    [words] = ran
    assert words[words.index("--encoder_sublayer_order") + 1] == "s2f2"
    assert words[-1] == "--resume_from_checkpoint=true"
    # what is finished is reported as before
    assert [row["test BLEU"] for row in read(folder / "results.csv")] == scores


def test_names_an_unknown_model(tmp_path):
    with pytest.raises(ValueError, match="unknown model 'lstm'; choose from transformer, macaron"):
        study_seq2seq.main(["--models", "lstm", f"--output_dir={tmp_path}"])


def test_trains_models_that_choose_orders_and_convolutions(flags, tmp_path):
    # a recipe's orders are not theirs
    flags += ["--layers=1", "--encoder_sublayer_order=(sf)3", "--decoder_sublayer_order=(scf)3"]
    names = ["iot_2", "equal_orders_4", "layerdrop", "dynamic_conv", "iot_4_dynamic_conv"]
    found = study_seq2seq.main([*flags, "--models", *names])
    assert {name: by_seed["0"]["decoder"] for name, by_seed in found.items()} == {
        "iot_2": "csf fcs",
        "equal_orders_4": "scf fsc csf fcs",
        "layerdrop": "scf",
        "dynamic_conv": "dcf",
        "iot_4_dynamic_conv": "dcf fdc cdf fcd",
    }
    # what chooses between two orders has two rows
    assert found["iot_2"]["0"]["parameters"] - found["equal_orders_4"]["0"]["parameters"] == 2 * 16
    assert not AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "study" / "equal_orders_4-0").config.predict_order
