import json
import warnings

import datasets
import pytest
import torch
from safetensors.torch import load_file
from tiny_teachers import TEXTS, distill_until, save_teacher, write_texts
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForMaskedLM,
    pipeline,
)

from sublayers.training.commands.distill import main as distill
from sublayers.training.data.corpus import Text
from sublayers.training.distill.moves import MovesCallback
from sublayers.training.distill.objectives import Logits, Words
from sublayers.training.distill.texts import encode_texts, mask_words

pytestmark = pytest.mark.slow

FAST = ["--use_cpu", "--disable_tqdm=true", "--report_to=none", "--max_length=16", "--objective=logits"]
TRAINED = ["--per_device_train_batch_size=8", "--learning_rate=1e-2", "--max_steps=20"]
TRAINED += ["--validation_split_percentage=20"]


@pytest.fixture
def files(tmp_path):
    model, _ = save_teacher(tmp_path / "teacher", labels=3)
    write_texts(tmp_path / "texts.txt")
    return model, str(tmp_path / "teacher"), f"--train_file={tmp_path / 'texts.txt'}"


def weights(folder):
    return load_file(folder / "model.safetensors")


def learn(out, *flags):
    """Train a student, without a warning of our own; it has to get better."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        metrics = distill([*flags, *TRAINED, "--output_dir", str(out)])
    first, *_, last = json.loads((out / "loss_curve.json").read_text())["eval_loss"]
    assert metrics["eval_loss"] == pytest.approx(last[1])
    assert last[1] < first[1]
    return metrics


def test_a_student_learns_to_classify_in_its_own_order(files, tmp_path, capsys):
    teacher, source, texts = files
    out = tmp_path / "out"
    metrics = learn(out, source, texts, *FAST, "--sublayer_order=s3f4", "--moves_every=4")
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

    distill_until(7, [*flags, "--output_dir", str(tmp_path / "parts")], monkeypatch)
    on_step_begin = MovesCallback.on_step_begin

    def record(callback, args, state, control, **kwargs):
        on_step_begin(callback, args, state, control, **kwargs)
        orders.append((state.global_step, [step.sublayer for step in callback.stack.steps]))

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
        "objective and pooling and teacher": [*flags, "--objective=relations", "--relation_heads=4"],
    }
    for name, given in refused.items():
        with pytest.raises(ValueError, match=f"holds answers for train with another {name}; choose another folder"):
            distill([*given, "--sublayer_order=sf", "--output_dir", str(tmp_path / f"not-{name}")])


@pytest.mark.parametrize(("flags", "number"), [([], 3), (["--whole_rows"], 2)])
def test_texts_are_sentences_or_whole_rows(flags, number, tmp_path):
    save_teacher(tmp_path / "teacher")
    texts = write_texts(tmp_path / "texts.txt", ["A short text. Another longer one.", "the first words"])
    out = tmp_path / "out"
    flags = [*FAST[:-1], *flags, "--objective=states", "--do_eval", "--sublayer_order=(sf)3", "--output_dir", str(out)]
    distill([str(tmp_path / "teacher"), f"--train_file={texts}", f"--validation_file={texts}", *flags])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "teacher")
    tokens = len(tokenizer("A short text. Another longer one the first words", add_special_tokens=False).input_ids)
    # the states of all tokens, a full stop and two special ones of each text among them
    (shard,) = (out / "answers" / "validation").glob("*.npy")
    # float16 behind a head
    assert shard.stat().st_size == 128 + 2 * 16 * (tokens + 1 + 2 * number)


STARTS = {
    "logits": {"eval_agreement": 1},
    "states": {"eval_cosine": 1},
    "relations": {},
    "words": {"eval_agreement": 1},
}


@pytest.mark.parametrize("objective", STARTS)
def test_a_student_that_is_its_teacher_has_nothing_to_learn_and_is_kept_as_it_starts(objective, tmp_path):
    labels = 3 if objective == "logits" else None
    teacher, tokenizer = save_teacher(tmp_path / "teacher", labels=labels, model_class=BertForMaskedLM)
    flags = [f"--train_file={write_texts(tmp_path / 'texts.txt')}", *FAST, "--do_eval", "--relation_heads=4"]
    out = ["--sublayer_order=(sf)3", "--output_dir", str(tmp_path / "out"), f"--objective={objective}"]
    metrics = distill([str(tmp_path / "teacher"), *flags, *out])
    assert metrics["eval_loss"] == pytest.approx(0, abs=1e-6)
    scores = {name: value for name, value in metrics.items() if name in ("eval_cosine", "eval_agreement")}
    assert scores == pytest.approx(STARTS[objective], abs=1e-5)
    student = AutoModel.from_pretrained(tmp_path / "out")
    rows = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        is_token = rows["attention_mask"] > 0
        found, expected = (model(**rows).last_hidden_state[is_token] for model in (student, teacher.base_model))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)


def test_words_are_learned_by_a_masked_language_model(tmp_path, capsys):
    bert, _ = save_teacher(tmp_path / "teacher", model_class=BertForMaskedLM)
    out = tmp_path / "out"
    flags = [f"--train_file={write_texts(tmp_path / 'texts.txt')}", *FAST, "--objective=words"]
    metrics = learn(out, str(tmp_path / "teacher"), *flags, "--sublayer_order=s3f3")
    student, tokenizer = AutoModelForMaskedLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert (type(student).__name__, student.config.sublayer_order) == ("PARBertForMaskedLM", "s3f3")
    assert len(pipeline("fill-mask", str(out))("a short [MASK]")) == 5
    # the first lines are for validation
    rows = encode_texts(Text(datasets.Dataset.from_dict({"text": TEXTS[:10]})), tokenizer, 16, by_sentence=True)
    same = []
    for ids in mask_words(rows, tokenizer)["input_ids"]:
        ids = torch.tensor([ids])
        with torch.no_grad():
            words = [model(ids).logits[0].argmax(-1)[ids[0] == tokenizer.mask_token_id] for model in (student, bert)]
        same += (words[0] == words[1]).tolist()
    assert metrics["eval_agreement"] == pytest.approx(sum(same) / len(same))
    assert "eval_agreement" in capsys.readouterr().out
    assert "the divergence of both probabilities of masked words at temperature 2" in (out / "README.md").read_text()


@pytest.mark.parametrize("objective", ["states", "relations"])
@pytest.mark.representatives(1)
def test_bodies_learn_what_tokens_have_and_go_on_after_an_interruption(objective, tmp_path, monkeypatch):
    save_teacher(tmp_path / "teacher")
    flags = [str(tmp_path / "teacher"), f"--train_file={write_texts(tmp_path / 'texts.txt')}", *FAST]
    flags += [*TRAINED, f"--objective={objective}", "--sublayer_order=s2f3", "--hidden_size=8", "--relation_heads=4"]
    flags += ["--save_steps=5", "--answers", str(tmp_path / "answers")]
    learn(tmp_path / "whole", *flags)
    kept = weights(tmp_path / "whole")
    assert [name for name in weights(tmp_path / "whole" / "checkpoint-20") if name not in kept] == (
        ["to_teacher.bias", "to_teacher.weight"] if objective == "states" else []
    )
    distill_until(7, [*flags, "--output_dir", str(tmp_path / "parts")], monkeypatch)
    distill([*flags, "--output_dir", str(tmp_path / "parts"), "--resume_from_checkpoint"])
    parts = weights(tmp_path / "parts")
    assert parts.keys() == kept.keys()
    assert all(torch.equal(parts[name], tensor) for name, tensor in kept.items())
    model = AutoModel.from_pretrained(tmp_path / "parts")
    assert (type(model).__name__, model.config.sublayer_order) == ("PARBertModel", "s2f3")
    said = {"states": "the squared difference of the states of each token", "relations": "in 4 heads"}[objective]
    assert said in (tmp_path / "parts" / "README.md").read_text()
    assert not (tmp_path / "parts" / "modules.json").exists()


def test_words_are_scored_in_as_few_bits_as_the_trainer_is_told(tmp_path, monkeypatch):
    save_teacher(tmp_path / "teacher", model_class=BertForMaskedLM)
    dtypes, ask = [], Words.ask
    monkeypatch.setattr(Words, "ask", lambda *args: dtypes.append(ask(*args).dtype) or ask(*args))
    flags = [f"--validation_file={write_texts(tmp_path / 'texts.txt')}", *FAST, "--do_eval", "--objective=words"]
    flags += ["--bf16", "--sublayer_order=(sf)3", "--output_dir", str(tmp_path / "out")]
    assert distill([str(tmp_path / "teacher"), *flags])["eval_loss"] < 0.1
    assert {*dtypes} == {torch.bfloat16}
