import pytest
import torch
from tiny_teachers import TEXTS, make_sentence_encoder, save_teacher, write_texts
from transformers import AutoModelForCausalLM, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from sublayers.training.data.corpus import CorpusArguments, load_corpus
from sublayers.training.distill.losses import embedding_loss, logit_loss
from sublayers.training.distill.subsets import take_subset
from sublayers.training.prune.calibration import measuring
from sublayers.training.prune.opening import calibrate, open_model, read_texts

SUBSETS = [(0, 1, 2, 3, 4, 5), (0, 1), (0, 1, 4), (1, 2, 5), (3,), (0, 1, 4, 5)]


def calibrated(folder, objective, batch_size=20):
    write_texts(folder / "texts.txt")
    teacher = open_model(str(folder))
    corpus = CorpusArguments(train_file=str(folder / "texts.txt"))
    rows = read_texts(teacher, objective, 30, 16, True, 0, load_corpus(corpus), "train")
    return teacher, rows, calibrate(teacher, objective, rows, batch_size)


def batches_of(teacher, rows, batch_size):
    for start in range(0, len(rows), batch_size):
        part = [*rows.select(range(start, min(start + batch_size, len(rows))))]
        yield len(part), teacher.tokenizer.pad(part, return_tensors="pt")


@pytest.mark.parametrize("mode", ["mean", "cls"])
@torch.no_grad()
def test_embeddings_are_compared_as_distillation_compares_them(mode, tmp_path):
    save_teacher(tmp_path)
    make_sentence_encoder(tmp_path, mode)
    teacher, rows, calibration = calibrated(tmp_path, "embeddings")

    def embed(model, batch):
        states, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
        return states[:, 0] if mode == "cls" else (states * mask).sum(1) / mask.sum(1)

    found = calibration.losses(SUBSETS, bar := measuring(len(SUBSETS)))
    # several batches
    assert bar.n == pytest.approx(len(SUBSETS))
    assert found[SUBSETS[0]] == pytest.approx(0, abs=1e-6)
    for subset in SUBSETS:
        model, expected = take_subset(teacher.model, subset), 0
        for number, batch in batches_of(teacher, rows, 20):
            loss = embedding_loss(embed(model, batch), embed(teacher.model, batch))
            expected += loss.item() * number / len(rows)
        assert found[subset] == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
def test_large_batches_run_in_parts(tmp_path, monkeypatch):
    save_teacher(tmp_path)
    make_sentence_encoder(tmp_path)
    _, _, calibration = calibrated(tmp_path, "embeddings", batch_size=40)
    whole = calibration.losses(SUBSETS)
    monkeypatch.setattr("sublayers.modeling.row_parts.PART_BYTES", 4 * 24 * 16 * 7)
    assert calibration.losses(SUBSETS) == pytest.approx(whole, abs=1e-6)


def test_logits_are_compared_as_distillation_compares_them(tmp_path):
    save_teacher(tmp_path, labels=3)
    teacher, rows, calibration = calibrated(tmp_path, "logits", batch_size=40)
    found = calibration.losses(SUBSETS)
    ((_, batch),) = batches_of(teacher, rows, 40)
    for subset in SUBSETS:
        logits = take_subset(teacher.model, subset)(**batch).logits
        expected = logit_loss(logits, teacher.model(**batch).logits, 1.0, True)
        assert found[subset] == pytest.approx(expected.item(), abs=1e-5)


def test_masked_words_can_be_asked(tmp_path):
    save_teacher(tmp_path, model_class=BertForMaskedLM)
    _, _, calibration = calibrated(tmp_path, "words")
    found = calibration.losses(SUBSETS)
    assert found[SUBSETS[0]] == pytest.approx(0, abs=1e-6)
    assert all(loss > 1e-4 for subset, loss in found.items() if subset != SUBSETS[0])


@torch.no_grad()
def test_next_tokens_have_the_loss_of_a_language_model(tmp_path):
    _, tokenizer = save_teacher(tmp_path)
    sizes = {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path)
    teacher, rows, calibration = calibrated(tmp_path, "next", batch_size=40)
    found = calibration.losses(SUBSETS)
    ((_, batch),) = batches_of(teacher, rows, 40)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    for subset in SUBSETS:
        take_subset(teacher.model, subset).save_pretrained(tmp_path / "small")
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
        assert found[subset] == pytest.approx(model(**batch, labels=labels).loss.item(), abs=1e-5)


def test_a_common_beginning_runs_once(tmp_path, monkeypatch):
    save_teacher(tmp_path, labels=3)
    _, _, calibration = calibrated(tmp_path, "logits", batch_size=40)
    runs = []
    (stack,) = calibration.stacks
    run_one = stack.run_one
    monkeypatch.setattr(stack, "run_one", lambda *args: runs.append(args[0].sublayer) or run_one(*args))
    calibration.losses([(0, 1, 2), (0, 1, 3), (0, 1, 3, 4), (2,)])
    assert runs == [0, 1, 2, 3, 4, 2]


def test_texts_are_drawn(tmp_path):
    save_teacher(tmp_path, labels=3)
    teacher, rows, _ = calibrated(tmp_path, "logits")
    assert len(rows) == 30
    known = {tuple(teacher.tokenizer(text, truncation=True, max_length=16)["input_ids"]) for text in TEXTS}
    assert {tuple(ids) for ids in rows["input_ids"]} <= known
