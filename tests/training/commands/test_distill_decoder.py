import pytest
import torch
from tiny_teachers import TEXTS, save_decoder, write_texts
from transformers import AutoModelForCausalLM, GenerationConfig, pipeline

from sublayers.training.commands.distill import main as distill
from sublayers.training.commands.prune import main as prune

FAST = ["--use_cpu", "--disable_tqdm=true", "--report_to=none", "--max_length=16", "--objective=next"]
TRAINED = ["--per_device_train_batch_size=4", "--learning_rate=1e-2", "--max_steps=20"]
TRAINED += ["--validation_split_percentage=20"]


@pytest.fixture
def files(tmp_path):
    model, tokenizer = save_decoder(tmp_path / "teacher")
    GenerationConfig(max_new_tokens=3, do_sample=False).save_pretrained(tmp_path / "teacher")
    return model, tokenizer, str(tmp_path / "teacher"), f"--train_file={write_texts(tmp_path / 'texts.txt', TEXTS * 3)}"


def mean_loss(model, tokenizer, texts):
    """The loss of next tokens of a stream in windows of 16 that share a token, each computed by transformers' way."""
    ids = [tokenizer.eos_token_id, *tokenizer("".join(f"{text}\n" for text in texts)).input_ids]
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(ids) - 1, 15):
            window = torch.tensor([ids[start : start + 16]])
            total += model(window, labels=window).loss.item() * (window.shape[1] - 1)
    return total / (len(ids) - 1)


def test_rounds_of_pruning_and_healing_leave_a_language_model(files, tmp_path):
    _, tokenizer, source, texts = files
    held_out = (TEXTS * 3)[:29]
    flags = [texts, "--max_length=16", "--texts=20", "--price=parameters"]
    prune([source, *flags, "--budget=0.8", f"--output_dir={tmp_path / 'first'}"])
    pruned = tmp_path / "first" / "0.8"
    before = mean_loss(AutoModelForCausalLM.from_pretrained(pruned), tokenizer, held_out)
    healing = [source, texts, *FAST, *TRAINED]
    metrics = distill([*healing, "--student", str(pruned), f"--output_dir={tmp_path / 'healed'}"])
    healed = AutoModelForCausalLM.from_pretrained(tmp_path / "healed")
    assert metrics["eval_next_loss"] == pytest.approx(mean_loss(healed, tokenizer, held_out), abs=1e-4)
    assert metrics["eval_next_loss"] < before
    # the second round begins with what the first one left, and names the sublayers of the first model
    prune([str(tmp_path / "healed"), *flags, "--budget=0.6", f"--output_dir={tmp_path / 'second'}"])
    smaller = AutoModelForCausalLM.from_pretrained(tmp_path / "second" / "0.6")
    first, second = (set(model.config.kept_sublayers) for model in (healed, smaller))
    assert second < first < {f"{letter}{number}" for letter in "sf" for number in range(3)}
    assert len(second) == smaller.config.num_sublayers
    writer = pipeline("text-generation", str(tmp_path / "second" / "0.6"))
    assert writer.model.generation_config.max_new_tokens == 3
    assert "It began as " in (tmp_path / "healed" / "README.md").read_text()


def test_a_student_that_is_its_teacher_has_the_loss_of_the_text(files, tmp_path):
    teacher, tokenizer, source, texts = files
    every = [f"{letter}{number}" for number in range(3) for letter in "sf"]
    flags = [texts.replace("train", "validation"), *FAST, "--do_eval", f"--output_dir={tmp_path / 'out'}"]
    metrics = distill([source, *flags, "--sublayers", *every])
    expected = mean_loss(teacher, tokenizer, TEXTS * 3)
    assert metrics["eval_next_loss"] == pytest.approx(expected, abs=1e-4)
    # the answers have 16 bits; batches of full windows weigh as much as the last one
    assert metrics["eval_loss"] == pytest.approx(expected, abs=0.02)
