import json
import math

import pytest
import torch
import yaml
from families import ENCODER_DECODERS, SIZES
from tiny_models import save_model

pytestmark = pytest.mark.slow

lm_eval = pytest.importorskip("lm_eval")
QUESTIONS = [
    {"question": "one and one is", "choices": ["two", "seven", "nine"], "answer": 0},
    {"question": "two and one is, as everybody knows,", "choices": ["four", "three"], "answer": 1},
]
# the second is longer than the model's positions
DOCUMENTS = ["a b c d e f", "some words of a longer text, " * 5]


@pytest.fixture
def evaluate(tmp_path):
    """Evaluate a family's model on tasks of our own: the model, and results and samples as lm-eval has them."""
    rows = {"sums": QUESTIONS, "texts": [{"text": text} for text in DOCUMENTS]}
    settings = {
        "sums": {"output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "answer"},
        "texts": {"output_type": "loglikelihood_rolling", "doc_to_target": "text"},
    }
    prompts, metrics = {"sums": "{{question}}", "texts": ""}, {"sums": "acc", "texts": "byte_perplexity"}
    (tmp_path / "tasks").mkdir()
    for name in rows:
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[name]))
        task = {"task": name, "dataset_path": "json", "test_split": "test", "doc_to_text": prompts[name]}
        task |= {"dataset_kwargs": {"data_files": {"test": str(tmp_path / f"{name}.jsonl")}}}
        task |= {"metric_list": [{"metric": metrics[name]}]}
        (tmp_path / "tasks" / f"{name}.yaml").write_text(yaml.safe_dump(task | settings[name]))

    def run(family: str, tasks: list[str], **options):
        model, tokenizer = save_model(tmp_path / "model", family, kind="byte")
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        evaluated = lm_eval.simple_evaluate(
            HFLM(pretrained=str(tmp_path / "model"), device="cpu", batch_size=2, **options),
            tasks=tasks,
            task_manager=TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False),
            bootstrap_iters=0,
        )
        return model, tokenizer, evaluated["results"], evaluated["samples"]

    return run


def log_probability(scores: torch.Tensor, ids: list[int]) -> float:
    """Of tokens, from the scores (ids, vocabulary) at the places before them."""
    return sum((row.softmax(-1)[i]).log().item() for row, i in zip(scores, ids, strict=True))


def check_sums(results, samples, expected: list[list[float]]):
    for sample, row in zip(samples["sums"], expected, strict=True):
        assert [response[0] for (response,) in sample["resps"]] == pytest.approx(row, rel=1e-5)
    right = [row.index(max(row)) == question["answer"] for row, question in zip(expected, QUESTIONS, strict=True)]
    assert results["sums"]["acc,none"] == sum(right) / len(right)


@torch.no_grad()
def test_scores_of_a_language_model_are_those_of_a_loop(evaluate):
    model, tokenizer, results, samples = evaluate("sandwich_lm", ["sums", "texts"])
    expected = []
    for question in QUESTIONS:
        prompt = tokenizer(question["question"]).input_ids
        choices = [tokenizer(" " + choice).input_ids for choice in question["choices"]]
        scores = [model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] for ids in choices]
        expected.append([log_probability(of_choice, ids) for of_choice, ids in zip(scores, choices, strict=True)])
    check_sums(results, samples, expected)

    longest, total = SIZES["max_position_embeddings"], 0.0
    for sample, text in zip(samples["texts"], DOCUMENTS, strict=True):
        ids, of_text = [tokenizer.eos_token_id, *tokenizer(text).input_ids], 0.0
        for start in range(0, len(ids) - 1, longest):
            end = min(start + longest, len(ids) - 1)
            # as much context as there is room for
            scores = model(torch.tensor([ids[max(0, end - longest) : end]])).logits[0, start - end :]
            of_text += log_probability(scores, ids[start + 1 : end + 1])
        assert sample["resps"] == [[pytest.approx(of_text, rel=1e-5)]]
        total += of_text
    perplexity = math.exp(-total / sum(len(text.encode()) for text in DOCUMENTS))
    assert results["texts"]["byte_perplexity,none"] == pytest.approx(perplexity, rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_scores_of_an_encoder_decoder_are_those_of_a_loop(family, evaluate):
    model, tokenizer, results, samples = evaluate(family, ["sums"], backend="seq2seq")
    expected = []
    for question in QUESTIONS:
        source = torch.tensor([tokenizer(question["question"]).input_ids])
        expected.append([])
        for choice in question["choices"]:
            ids = tokenizer(" " + choice).input_ids
            target = torch.tensor([[model.config.decoder_start_token_id, *ids[:-1]]])
            expected[-1].append(log_probability(model(source, decoder_input_ids=target).logits[0], ids))
    check_sums(results, samples, expected)
