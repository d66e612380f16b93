"""Students of sentence encoders and rerankers, opened where people use them."""

import json

import pytest
import sentence_transformers
import torch
from scipy.stats import spearmanr
from tiny_teachers import TEXTS, make_sentence_encoder, save_plain_norms, save_teacher, write_texts
from transformers import AutoModel, AutoTokenizer

from sublayers.training.commands.distill import main as distill
from sublayers.training.distill.teacher import answer

pytestmark = pytest.mark.slow

FLAGS = ["--use_cpu", "--disable_tqdm=true", "--report_to=none", "--max_length=16", "--per_device_train_batch_size=8"]
FLAGS += ["--validation_split_percentage=20", "--learning_rate=1e-2"]


def train(place, *flags, lines=TEXTS):
    """Train a student of `teacher`, which comes to lie in `out`: its metrics."""
    texts = write_texts(place / "texts.txt", lines)
    return distill(
        [str(place / "teacher"), f"--train_file={texts}", *FLAGS, *flags, "--output_dir", str(place / "out")]
    )


def embed(folder):
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS, convert_to_tensor=True)


@pytest.mark.parametrize("objective", ["embeddings", "states"])
@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_a_student_in_its_teachers_order_embeds_as_its_teacher_does(mode, objective, tmp_path):
    save_teacher(tmp_path / "teacher")
    make_sentence_encoder(tmp_path / "teacher", mode)
    metrics = train(tmp_path, f"--objective={objective}", "--do_eval", "--sublayer_order=(sf)3")
    assert metrics["eval_cosine"] == pytest.approx(1)
    torch.testing.assert_close(embed(tmp_path / "out"), embed(tmp_path / "teacher"), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("teachers", "mode"), [("mean", "mean"), ("mean", "cls"), ("cls", "cls"), ("cls", "mean")])
@pytest.mark.representatives(2)
def test_what_a_student_has_learned_is_what_its_folder_embeds(teachers, mode, tmp_path):
    save_teacher(tmp_path / "teacher")
    make_sentence_encoder(tmp_path / "teacher", teachers)
    out, pooling = tmp_path / "out", ["--pooling", mode] * (mode != teachers)
    metrics = train(tmp_path, "--sublayer_order=s3f4", "--moves_every=4", "--max_steps=20", *pooling)
    encoder = sentence_transformers.SentenceTransformer(str(out), device="cpu")
    # as its teacher's
    assert encoder.max_seq_length == 24
    counts = []
    encoder[0].model.layers[-1].register_forward_hook(lambda _, args, out: counts.append(out[..., 0].numel()))
    found = encoder.encode(TEXTS, convert_to_tensor=True)
    rows = AutoTokenizer.from_pretrained(out)(TEXTS, padding=True, return_tensors="pt")
    # the tail runs on one token of each text, if nothing else is read
    assert sum(counts) == (len(TEXTS) if mode == "cls" else int(rows["attention_mask"].sum()))
    with torch.no_grad():
        states = torch.nn.functional.normalize(answer(AutoModel.from_pretrained(out), rows, mode), dim=-1)
    torch.testing.assert_close(found, states, rtol=1e-5, atol=1e-6)
    # the first lines are for validation
    cosines = (found * embed(tmp_path / "teacher")).sum(-1)[:10]
    assert metrics["eval_cosine"] == pytest.approx(cosines.mean().item(), abs=1e-5)
    assert "the squared difference of the cosines within a batch" in (out / "README.md").read_text()


def test_a_student_embeds_by_the_mean_with_which_its_tail_begins(tmp_path):
    save_teacher(tmp_path / "teacher")
    make_sentence_encoder(tmp_path / "teacher", "mean")
    out = tmp_path / "out"
    metrics = train(tmp_path, "--sublayer_order=sf(mf)2", "--tail_query=mean", "--max_steps=20")
    encoder = sentence_transformers.SentenceTransformer(str(out), device="cpu")
    counts = []
    for layer in encoder[0].model.layers:
        layer.register_forward_hook(lambda _, args, out: counts.append(out[..., 0].numel()))
    found = encoder.encode(TEXTS, batch_size=len(TEXTS), convert_to_tensor=True)
    model, tokenizer = AutoModel.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    rows = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert counts == [int(rows["attention_mask"].sum())] * 2 + [len(TEXTS)] * 4
    with torch.no_grad():
        states = model.forward_first_token(**rows).last_hidden_state[:, 0]
    torch.testing.assert_close(found, torch.nn.functional.normalize(states, dim=-1), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found, embed(tmp_path / "teacher"), atol=1e-2)
    cosines = (found * embed(tmp_path / "teacher")).sum(-1)[:10]
    assert metrics["eval_cosine"] == pytest.approx(cosines.mean().item(), abs=1e-5)


def test_a_cross_encoder_opens_a_student_of_a_reranker(tmp_path):
    save_teacher(tmp_path / "teacher", labels=1)
    pairs = [*zip(TEXTS, TEXTS[::-1], strict=True)]
    flags = ["--objective=logits", "--do_eval", "--sublayer_order=(sf)3"]
    assert "eval_agreement" not in train(tmp_path, *flags, lines=map("\t".join, pairs))
    assert "the squared difference of both" in (tmp_path / "out" / "README.md").read_text()
    scores = [
        sentence_transformers.CrossEncoder(str(tmp_path / name), device="cpu").predict(pairs, convert_to_tensor=True)
        for name in ("out", "teacher")
    ]
    torch.testing.assert_close(*scores, rtol=1e-5, atol=1e-6)


def test_a_run_tests_the_embeddings_of_student_and_teacher(tmp_path, refusal):
    save_plain_norms(save_teacher(tmp_path / "teacher")[0], tmp_path / "teacher")
    make_sentence_encoder(tmp_path / "teacher", "mean")
    labels = [n * n % 7 for n in range(len(TEXTS) - 1)]
    pairs = [{"sentence1": TEXTS[n], "sentence2": TEXTS[n + 1], "label": label} for n, label in enumerate(labels)]
    answers = {"text": ["a"], "answer_start": [0]}
    asked = [{"id": text, "question": text, "context": text, "answers": answers} for text in TEXTS]
    files = {"sts": write_texts(tmp_path / "pairs.jsonl", map(json.dumps, pairs))}
    files |= {"squad": write_texts(tmp_path / "questions.jsonl", map(json.dumps, asked))}
    flags = [word for name, file in files.items() for word in (f"--{name}_file", str(file))]
    metrics = train(tmp_path, "--sublayer_order=s3f4", "--max_steps=4", *flags)
    for name, folder in {"": "out", "teacher_": "teacher"}.items():
        found = torch.nn.functional.normalize(embed(tmp_path / folder), dim=-1)
        correlation = spearmanr((found[:-1] * found[1:]).sum(-1), labels).statistic
        assert metrics[f"test_{name}sts"] == pytest.approx(100 * correlation, abs=0.5)
        # a text is next to itself
        assert metrics[f"test_{name}retrieval"] == 100
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert {score["metric"]: score["value"] for score in run["results"] if score["split"] == "test"} == {
        name.removeprefix("test_"): value for name, value in metrics.items() if name.startswith("test_")
    }
    tested = f"pairs.jsonl, questions.jsonl, {len(pairs) + len(asked)} rows"
    assert tested in (tmp_path / "out" / "README.md").read_text()
    said = refusal("distill", tmp_path / "teacher", "--objective=states", "--sublayer_order=sf", *flags)
    assert "a student that learns states is not tested by its embeddings" in said
