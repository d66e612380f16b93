import json
from pathlib import Path

import datasets
import pytest
import torch
from huggingface_hub import ModelCard
from tiny_runs import write_rows
from tiny_translators import draw_pairs
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, BartConfig, BartForConditionalGeneration

from sublayers.training.commands.seq2seq import main as seq2seq, parse
from sublayers.training.data.pairs import train_pair_tokenizers

pytestmark = pytest.mark.slow

TINY = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 290, "max_steps": 3}
TINY |= {"encoder_sublayer_order": "fsf", "decoder_sublayer_order": "fscf", "num_beams": 2}
LENGTHS = ["--max_source_length", "24", "--max_target_length", "24", "--use_cpu", "--disable_tqdm", "true"]


@pytest.fixture
def files(tmp_path):
    """Flags that name made-up translations."""
    flags = ["--task", "translation", "--source", "de", "--target", "en"]
    for seed, (split, number) in enumerate({"train": 40, "validation": 12, "test": 9}.items()):
        path = tmp_path / f"{split}.jsonl"
        rows = [{"translation": {"de": source, "en": target}} for source, target in draw_pairs(number, seed)]
        flags += [f"--{split}_file", write_rows(path, rows)]
    return flags


@pytest.fixture
def settings(tmp_path):
    return [*(f"--{name}={value}" for name, value in TINY.items()), *LENGTHS]


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_trains_evaluates_predicts_and_leaves_everything_behind(tmp_path, settings, files, capsys):
    out = tmp_path / "out"
    smooth = ["--label_smoothing_factor", "0.3", "--length_penalty", "0.6"]
    metrics = seq2seq([*settings, *files, *smooth, "--max_tokens", "80", "--output_dir", str(out)])
    printed = capsys.readouterr().out.splitlines()
    assert "sacreBLEU nrefs:1|case:mixed" in printed[-1]
    for name in ("train_loss", "eval_loss", "eval_bleu", "test_loss", "test_bleu", "test_tokenized_bleu"):
        assert f"{name} {metrics[name]:.4f}" in printed[-2]
    saved = json.loads((out / "all_results.json").read_text())
    assert all(saved[name] == metrics[name] for name in ("eval_bleu", "test_loss"))
    assert (out / "loss_curve.png").exists()
    card = ModelCard.load(out / "README.md").data
    assert (card.pipeline_tag, card.language) == ("translation", ["de", "en"])
    scores = {(score.metric_type, score.dataset_split): score.metric_value for score in card.eval_results}
    assert scores["bleu", "test"] == metrics["test_bleu"]
    assert scores["bleu", "validation"] == metrics["eval_bleu"]

    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    config, generation = model.config, model.generation_config
    assert (config.model_type, config.encoder_sublayer_order) == ("macaron_seq2seq", "fsf")
    assert (config.use_cache, config.label_smoothing, config.max_position_embeddings) == (True, 0.3, 24)
    assert torch.load(out / "training_args.bin", weights_only=False).label_smoothing_factor == 0
    assert config.vocab_size == len(tokenizer) == 290
    assert (config.eos_token_id, config.decoder_start_token_id) == (tokenizer.eos_token_id,) * 2
    assert (generation.num_beams, generation.length_penalty) == (2, 0.6)
    # the Trainer's limit counts the token that starts a text, that of the folder does not
    assert (generation.max_new_tokens, generation.max_length) == (24, None)
    assert generation.use_cache

    rows = read_lines(out / "predictions_test.jsonl")
    assert [(row["source"], row["target"]) for row in rows] == draw_pairs(9, 2)
    nats, tokens = 0.0, 0
    for row in rows:
        ids = tokenizer(row["source"], return_tensors="pt").input_ids
        labels = torch.tensor(tokenizer(row["target"]).input_ids)
        with torch.no_grad():
            # each by itself, without smoothing: the loss is the mean over all tokens
            start = torch.tensor([config.decoder_start_token_id])
            logits = model(ids, decoder_input_ids=torch.cat([start, labels[:-1]])[None], use_cache=False).logits[0]
            generated = model.generate(ids)
        nats -= logits.log_softmax(-1).gather(1, labels[:, None]).sum().item()
        tokens += len(labels)
        assert tokenizer.decode(generated[0], skip_special_tokens=True) == row["prediction"]
    assert metrics["test_loss"] == pytest.approx(nats / tokens, rel=1e-5)

    again = ["--do_predict", "--model_name_or_path", str(out), "--output_dir", str(tmp_path / "again")]
    repeated = seq2seq([*files, *again, *LENGTHS, "--per_device_eval_batch_size", "2"])
    assert repeated["test_loss"] == pytest.approx(metrics["test_loss"], rel=1e-5)
    assert repeated["test_bleu"] == metrics["test_bleu"]
    assert read_lines(tmp_path / "again" / "predictions_test.jsonl") == rows
    assert "eval_loss" not in repeated
    assert not (tmp_path / "again" / "model.safetensors").exists()


def test_source_and_target_may_have_vocabularies_of_their_own(tmp_path, settings, files):
    out = tmp_path / "out"
    flags = ["--separate_vocabularies", "--model_type", "sandwich_seq2seq", "--vocab_size", "280"]
    metrics = seq2seq([*settings, *files, *flags, "--output_dir", str(out), "--lowercase"])
    for folder in (out, out / "checkpoint-3"):
        model = AutoModelForSeq2SeqLM.from_pretrained(folder)
        source, target = map(AutoTokenizer.from_pretrained, (folder, folder / "target_tokenizer"))
        assert (model.config.encoder_vocab_size, model.config.vocab_size) == (len(source), len(target))
        assert not model.config.share_encoder_decoder_embeddings
        assert model.config.use_cache
        assert len(source("sechs").input_ids) < len(target("sechs").input_ids)
    again = ["--do_eval", "--model_name_or_path", str(out), "--output_dir", str(tmp_path / "again"), "--lowercase"]
    assert seq2seq([*files, *again, *LENGTHS])["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-5)
    # and so may those of a new model that are given
    own = ["--tokenizer_name_or_path", str(out), "--target_tokenizer_name_or_path", str(out / "target_tokenizer")]
    seq2seq([*settings, *files, *own, "--do_train", "--output_dir", str(tmp_path / "new"), "--max_steps", "1"])
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "new").config.encoder_vocab_size == len(source)


def test_summarizes_with_a_prefix_and_writes_code_without_data(tmp_path, settings, files, monkeypatch):
    flags = ["--task", "summarization", "--source_prefix", "summarize: ", "--output_dir", str(tmp_path / "summaries")]
    metrics = seq2seq([*settings, *files[2:], *flags])
    assert {"eval_rouge1", "eval_rougeL", "test_rouge2"} <= metrics.keys()
    rows = read_lines(tmp_path / "summaries" / "predictions_validation.jsonl")
    assert all(row["source"].startswith("summarize: ") for row in rows)

    # the library takes seconds to read
    code = datasets.Dataset.from_list([{"source": f"Add {n}.", "target": f"def f(x):\n    x + {n}"} for n in range(9)])
    splits = {"train": code, "validation": code.take(4), "test": code.skip(6)}
    monkeypatch.setattr("sublayers.training.data.pairs.docstring_to_code", lambda: splits)
    lengths = ["--max_source_length", "64", "--max_target_length", "64", "--generation_max_length", "9"]
    metrics = seq2seq([*settings, *lengths, "--output_dir", str(tmp_path / "code"), "--max_steps", "1"])
    assert {"eval_valid_code", "test_sentence_bleu"} <= metrics.keys()


def test_training_evaluations_generate_only_for_their_scores(tmp_path, settings, files):
    def logged(name: str, *flags: str) -> list[set[str]]:
        seq2seq([*settings, *files, *flags, "--eval_steps", "1", "--output_dir", str(tmp_path / name)])
        history = json.loads((tmp_path / name / "checkpoint-3" / "trainer_state.json").read_text())["log_history"]
        return [entry.keys() for entry in history if "eval_loss" in entry]

    assert not any("eval_bleu" in entry for entry in logged("loss", "--save_steps", "3"))
    best = ["--load_best_model_at_end", "--metric_for_best_model", "bleu", "--save_steps", "1"]
    assert all("eval_bleu" in entry for entry in logged("bleu", *best))
    metrics = seq2seq([*settings, *files, "--no_predict_with_generate", "--output_dir", str(tmp_path / "silent")])
    assert "test_loss" in metrics
    assert "test_bleu" not in metrics
    assert not (tmp_path / "silent" / "predictions_test.jsonl").exists()


def test_label_smoothing_of_other_models_is_the_trainers(tmp_path, settings, files):
    start, out = tmp_path / "bart", tmp_path / "out"
    pairs = datasets.Dataset.from_list([{"source": "eins", "target": "one"}])
    train_pair_tokenizers(pairs, [262])[0].save_pretrained(start)
    sizes = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 8)
    sizes |= dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    bart = BartForConditionalGeneration(BartConfig(**sizes, vocab_size=262, max_position_embeddings=64))
    bart.save_pretrained(start)
    flags = ["--model_name_or_path", str(start), "--max_steps", "2", "--generation_max_length", "12"]
    seq2seq([*files, *flags, "--output_dir", str(out), *LENGTHS])
    assert torch.load(out / "training_args.bin", weights_only=False).label_smoothing_factor == 0.1
    assert "label_smoothing" not in json.loads((out / "config.json").read_text())


def test_files_need_a_task():
    with pytest.raises(ValueError, match="the metrics depend on the task; give --task"):
        parse(["--train_file", "a.jsonl"])
