import json
import warnings

import datasets
import pytest
import torch
from safetensors.torch import load_file
from tiny_teachers import TEXTS, save_teacher, write_texts
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback, pipeline

from sublayers.training.commands import distill as command
from sublayers.training.commands.distill import main as distill
from sublayers.training.distill.moves import MovesCallback
from sublayers.training.distill.objectives import Logits

pytestmark = pytest.mark.slow

FAST = ["--use_cpu", "--disable_tqdm=true", "--report_to=none", "--max_length=16", "--objective=logits"]
TRAINED = [
    "--per_device_train_batch_size=8",
    "--learning_rate=1e-2",
    "--max_steps=20",
    "--validation_split_percentage=20",
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def files(tmp_path):
    model, _ = save_teacher(tmp_path / "teacher", labels=3)
    write_texts(tmp_path / "texts.txt")
    return model, str(tmp_path / "teacher"), f"--train_file={tmp_path / 'texts.txt'}"


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_a_student_learns_to_classify_in_its_own_order(files, tmp_path, capsys):
    teacher, source, texts = files
    out = tmp_path / "out"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        metrics = distill(
            [source, texts, *FAST, *TRAINED, "--sublayer_order=s3f4", "--moves_every=4", "--output_dir", str(out)]
        )
    first, *_, last = json.loads((out / "loss_curve.json").read_text())["eval_loss"]
    assert last[1] < first[1]
    assert metrics["eval_loss"] == pytest.approx(last[1])
    student = AutoModelForSequenceClassification.from_pretrained(out)
    assert student.config.sublayer_order == "s3f4"
    assert student.config.id2label == teacher.config.id2label
    # the first lines are for validation; the student that was evaluated runs in the order that is saved
    tokenizer, kept = AutoTokenizer.from_pretrained(source), TEXTS[:10]
    rows = tokenizer(kept, padding=True, return_tensors="pt")
    with torch.no_grad():
        labels = [model(**rows).logits.argmax(-1) for model in (student, teacher)]
    assert metrics["eval_agreement"] == pytest.approx((labels[0] == labels[1]).float().mean().item())
    assert "eval_agreement" in capsys.readouterr().out
    classified = [row["label"] for row in pipeline("text-classification", str(out))(kept)]
    assert classified == [teacher.config.id2label[label] for label in labels[0].tolist()]
    card = (out / "README.md").read_text()
    assert "the divergence of both probabilities at temperature 2" in card
    assert "From sfsfsff to its own order in 3 moves, one every 4 steps" in card
    assert "started from" in card


def test_a_run_that_was_interrupted_between_moves_ends_as_if_it_had_not_been(files, tmp_path, monkeypatch):
    _, source, texts = files
    flags = [source, texts, *FAST, *TRAINED, "--sublayer_order=s3f3", "--moves_every=4", "--save_steps=5"]
    distill([*flags, "--output_dir", str(tmp_path / "whole")])
    orders = []

    class Interrupt(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 7:
                raise KeyboardInterrupt

    def make_trainer(*args, make=command.make_trainer):
        trainer = make(*args)
        trainer.add_callback(Interrupt())
        return trainer

    with monkeypatch.context() as patched:
        patched.setattr(command, "make_trainer", make_trainer)
        with pytest.raises(KeyboardInterrupt):
            distill([*flags, "--output_dir", str(tmp_path / "parts")])
    on_step_begin = MovesCallback.on_step_begin

    def record(callback, args, state, control, **kwargs):
        on_step_begin(callback, args, state, control, **kwargs)
        orders.append((state.global_step, callback.stack.indices[0]))

    monkeypatch.setattr(MovesCallback, "on_step_begin", record)
    # the teacher's answers are there
    monkeypatch.setattr(Logits, "ask_teacher", None)
    distill([*flags, "--output_dir", str(tmp_path / "parts"), "--resume_from_checkpoint"])
    assert orders[0] == (5, [0, 1, 3, 4, 2, 5])
    whole, parts = (weights(tmp_path / name) for name in ("whole", "parts"))
    assert all(torch.equal(parts[name], tensor) for name, tensor in whole.items())


def test_students_share_the_answers_of_one_teacher(files, tmp_path, monkeypatch):
    _, source, texts = files
    flags = [source, texts, *FAST, *TRAINED, "--answers", str(tmp_path / "answers")]
    distill([*flags, "--sublayer_order=(sf)2", "--output_dir", str(tmp_path / "one")])
    monkeypatch.setattr(Logits, "ask_teacher", None)
    distill([*flags, "--sublayer_order=s2f3", "--layers", "0", "2", "--output_dir", str(tmp_path / "two")])
    save_teacher(tmp_path / "other", labels=3, seed=1)
    write_texts(tmp_path / "others.txt", TEXTS[1:])
    refused = {
        "teacher": [str(tmp_path / "other"), *flags[1:]],
        "text": [*flags, f"--train_file={tmp_path / 'others.txt'}"],
        "max_length": [*flags, "--max_length=12"],
    }
    for name, given in refused.items():
        with pytest.raises(ValueError, match=f"holds answers for train with another {name}; choose another folder"):
            distill([*given, "--sublayer_order=sf", "--output_dir", str(tmp_path / f"not-{name}")])


def test_without_training_the_student_is_kept_as_it_starts(files, tmp_path):
    teacher, source, texts = files
    metrics = distill(
        [source, texts, *FAST, "--do_eval", "--sublayer_order=(sf)3", "--output_dir", str(tmp_path / "out")]
    )
    assert metrics["eval_loss"] == pytest.approx(0, abs=1e-6)
    assert metrics["eval_agreement"] == 1
    student = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    rows = AutoTokenizer.from_pretrained(tmp_path / "out")(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(student(**rows).logits, teacher(**rows).logits, rtol=1e-6, atol=2e-6)


def test_a_reranker_learns_from_pairs(tmp_path):
    save_teacher(tmp_path / "teacher", labels=1)
    pairs = write_texts(
        tmp_path / "pairs.txt", [f"{text}\t{other}" for text, other in zip(TEXTS, TEXTS[::-1], strict=True)]
    )
    flags = [f"--train_file={pairs}", *FAST, *TRAINED, "--sublayer_order=s3f3", "--moves_every=4"]
    metrics = distill([str(tmp_path / "teacher"), *flags, "--output_dir", str(tmp_path / "out")])
    assert "eval_agreement" not in metrics
    assert "the squared difference of both" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sublayer_order=s4f4"], "the order s4f4 has 4 s, more than the 3 of the teacher"),
        (["--sublayer_order=saf"], "'a' is not a sublayer"),
        (
            ["--sublayer_order=(sf)2", "--layers", "0", "3"],
            "--layers 0 3 is no rising list of the teacher's layers 0 to 2",
        ),
        (["--sublayer_order=sf", "--max_length=33"], "max_length=33 is not between 3 and the teacher's 32"),
        (["--sublayer_order=sf", "--pooling=cls"], "learns logits does not pool; leave --pooling cls out"),
        (["--sublayer_order=sf", "--streaming"], "leave --streaming out"),
        (["--sublayer_order=sf", "--moves_every=-1"], "--moves_every -1 is no number of steps"),
        (["--sublayer_order=sf", "--temperature=0"], "--temperature 0.0 is not positive"),
        (["--sublayer_order=s3f3", "--moves_every=7"], "3 moves, one every 7 steps, take more than 21 steps"),
    ],
)
def test_bad_input_is_refused(flags, message, files, tmp_path, monkeypatch):
    _, source, texts = files
    # before the teacher is asked
    monkeypatch.setattr(Logits, "ask_teacher", None)
    with pytest.raises(ValueError, match=message):
        distill([source, texts, *FAST, *TRAINED, *flags, "--output_dir", str(tmp_path / "out")])


def test_a_teacher_is_named_first():
    with pytest.raises(ValueError, match="there is no teacher; name its folder first"):
        distill(["--sublayer_order=sf"])
