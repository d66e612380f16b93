import json
import math
import warnings

import pytest
from PIL import Image
from tiny_runs import make_commands
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoTokenizer,
    BertTokenizer,
)

from sublayers.training.commands.pretrain import main as pretrain

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(tmp_path):
    """Flags of a tiny run, whose corpus is a file of lines."""
    (tmp_path / "data").mkdir()
    return [*make_commands(tmp_path / "data")["pretrain"][1:], "--sublayer_order", "s(sf)f", "--max_steps", "4"]


@pytest.fixture
def bert_settings(tmp_path, settings):
    """Flags of a model of BERT's kind, which trains its own tokenizer on documents of six sentences."""
    corpus = tmp_path / "documents.txt"
    corpus.write_text("".join(f"line {n} of a tiny corpus.\n" + "\n" * (n % 6 == 0) for n in range(60)))
    own = f"--objective mlm+nsp --tokenizer_model wordpiece --vocab_size 80 --block_size 24 --train_file {corpus}"
    return [*settings, *own.split(), "--validation_split_percentage=20", "--per_device_train_batch_size=4"]


def train(out, flags):
    """Train into a folder, without a warning of our own, and return the metrics and the curve of the evaluation."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        metrics = pretrain([*flags, "--output_dir", str(out)])
    return metrics, json.loads((out / "loss_curve.json").read_text())["eval_loss"]


def test_trains_evaluates_and_leaves_everything_behind(tmp_path, settings, capsys):
    out = tmp_path / "out"
    metrics, curve = train(out, [*settings, "--max_steps", "6", "--logging_steps", "1", "--use_cpu", "false"])
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.sublayer_order == "s2f2"
    assert model.config.use_cache
    assert (model.config.max_position_embeddings, model.config.vocab_size) == (16, 259)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer("a\n é").input_ids) == "a\n é"
    losses = json.loads((out / "loss_curve.json").read_text())["loss"]
    assert [step for step, _ in losses] == [step for step, _ in curve] == [1, 2, 3, 4, 5, 6]
    assert curve[-1][1] < curve[0][1]
    assert min(Image.open(out / "loss_curve.png").size) > 400
    saved = json.loads((out / "all_results.json").read_text())
    assert saved["eval_loss"] == metrics["eval_loss"] == curve[-1][1]
    printed = capsys.readouterr().out.splitlines()[-1]
    for name in ("eval_loss", "eval_perplexity", "eval_bits_per_byte", "eval_bits_per_character"):
        assert f"{name} {metrics[name]:.4f}" in printed

    # more context than blocks give can only come from other windows
    common = [*settings, "--do_eval", "--model_name_or_path", str(out), "--output_dir"]
    assert pretrain([*common, str(tmp_path / "again")])["eval_loss"] == metrics["eval_loss"]
    assert not (tmp_path / "again" / "model.safetensors").exists()
    assert pretrain([*common, str(tmp_path / "more"), "--context_window", "12"])["eval_loss"] != metrics["eval_loss"]


def test_trains_on_masked_tokens_and_next_sentences(tmp_path, bert_settings, capsys):
    out = tmp_path / "out"
    metrics, curve = train(out, [*bert_settings, "--max_steps", "8"])
    model, tokenizer = AutoModelForPreTraining.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert (model.config.model_type, model.config.sublayer_order) == ("par_bert", "s2f2")
    assert not model.config.use_cache
    assert model.config.vocab_size == len(tokenizer) == 80
    assert model.config.pad_token_id == tokenizer.pad_token_id
    printed = capsys.readouterr().out.splitlines()[-1]
    for name in ("perplexity", "masked_accuracy", "next_sentence_loss", "next_sentence_accuracy"):
        assert f"eval_{name} {metrics[f'eval_{name}']:.4f}" in printed
    assert metrics["eval_loss"] == curve[-1][1] < curve[0][1]

    common = [*bert_settings, "--do_eval", "--model_name_or_path", str(out)]
    again = pretrain([*common, "--output_dir", str(tmp_path / "again"), "--per_device_eval_batch_size", "3"])
    assert again["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-5)
    assert again["eval_next_sentence_accuracy"] == metrics["eval_next_sentence_accuracy"]


def test_a_family_without_a_causal_head_is_trained_on_masked_tokens(tmp_path, bert_settings):
    flags = "--model_type macaron_bert --sublayer_order fsf --whole_word_mask --optimizer lamb"
    chosen = {"--objective", "mlm+nsp", "--tokenizer_model", "byte", "wordpiece"}
    given = [word for word in bert_settings if word not in chosen]
    metrics = pretrain([*given, *flags.split(), "--output_dir", str(tmp_path / "out")])
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "out")).__name__ == "MacaronBertForMaskedLM"
    assert {"eval_perplexity", "eval_masked_accuracy"} <= metrics.keys()
    assert "eval_next_sentence_loss" not in metrics


def test_rare_words_get_narrow_vectors(tmp_path, settings):
    flags = [*settings, "--adaptive_cutoffs", "100", "200", "--adaptive_factor", "2", "--max_steps", "30"]
    metrics, _ = train(tmp_path / "out", flags)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert [band.table.shape[1] for band in model.get_input_embeddings()] == [16, 8, 4]
    again = ["--model_name_or_path", str(tmp_path / "out"), "--do_eval", "--output_dir", str(tmp_path / "again")]
    assert pretrain([*settings, *again])["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-5)
    # better than no idea of what comes next
    assert metrics["eval_loss"] < math.log(model.config.vocab_size)


def test_the_word_pieces_of_bert_are_read_as_they_are(tmp_path, settings):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "line", "of", "a", "tiny", "##us", "corp", ".", "7"]
    BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(tmp_path / "bert")
    train(tmp_path / "out", [*settings, "--tokenizer_name_or_path", str(tmp_path / "bert")])
    model, tokenizer = (auto.from_pretrained(tmp_path / "out") for auto in (AutoModelForCausalLM, AutoTokenizer))
    assert model.config.vocab_size == len(words)
    assert model.config.eos_token_id == tokenizer.eos_token_id == words.index("[SEP]")


def test_lamb_takes_the_place_of_adam(tmp_path, bert_settings):
    weights = []
    for number, flags in enumerate([[], ["--optimizer", "lamb"], ["--optimizer", "lamb", "--adam_epsilon", "1e-2"]]):
        out = tmp_path / str(number)
        pretrain([*bert_settings, "--max_steps", "1", "--warmup_steps", "0", "--output_dir", str(out), *flags])
        weights.append(AutoModelForPreTraining.from_pretrained(out).base_model.embed_tokens.weight)
    assert not weights[0].equal(weights[1])
    assert not weights[1].equal(weights[2])


@pytest.mark.full
def test_trains_on_the_standard_library_without_a_corpus(tmp_path, settings):
    at = settings.index("--train_file")
    few = ["--max_train_samples", "5", "--max_eval_samples", "1", "--max_steps", "1"]
    assert train(tmp_path / "out", [*settings[:at], *settings[at + 2 :], *few])[0]["eval_loss"] > 0


def test_resuming_without_a_whole_checkpoint_starts_from_the_beginning(tmp_path, settings, capsys, caplog):
    flags = [*settings, "--output_dir", str(tmp_path / "out"), "--max_steps", "1", "--resume_from_checkpoint"]
    pretrain(flags)
    assert "no complete checkpoint" in capsys.readouterr().out
    assert (tmp_path / "out" / "model.safetensors").exists()
    # steps that are shares of all are those of the checkpoint
    pretrain(flags)
    assert f"continuing from {tmp_path / 'out' / 'checkpoint-1'}" in capsys.readouterr().out
    assert "do not match" not in caplog.text
    # a path names one checkpoint, complete or not
    with pytest.raises(FileNotFoundError, match="is no complete checkpoint"):
        pretrain([*flags, str(tmp_path / "out")])
