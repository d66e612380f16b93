"""Recipes have the settings, orders and sizes that their papers and the authors' code say."""

import pytest
import torch
import transformers

from sublayers.training.commands import glue, pretrain, seq2seq, squad
from sublayers.training.trainers.language_modeling import evaluation_settings
from sublayers.training.trainers.start import load_config

pytestmark = pytest.mark.slow

TRANSFORMER = {"adam_beta1": 0.9, "adam_beta2": 0.98, "adam_epsilon": 1e-8, "label_smoothing_factor": 0.1}
TRANSFORMER |= {"lr_scheduler_type": "inverse_sqrt", "task": "translation"}
# settings by recipe; parameters of the authors' code with the vocabularies of the recipes
TRANSLATION = {
    "macaron_small": (36_761_600, {"max_tokens": 4096, "learning_rate": 1.5e-3, "weight_decay": 1e-4}),
    "macaron_base": (60_936_192, {"max_tokens": 8192, "learning_rate": 1.5e-3, "warmup_steps": 8000}),
    "macaron_big": (209_952_768, {"max_tokens": 4096, "learning_rate": 3e-3, "gradient_accumulation_steps": 64}),
    "sandwich_wmt": (209_911_808, {"max_tokens": 3584, "length_penalty": 0.6, "save_total_limit": 10}),
    "multi30k": (None, {"source": "de", "target": "en", "lowercase": False}),
}
# the paper's choices (A.3) by the numbers of Table 11
TABLE_11 = {1: "scf", 2: "fsc", 3: "cfs", 4: "csf", 5: "sfc", 6: "fcs"}
IWSLT = {"generation_num_beams": 5, "length_penalty": None, "separate_vocabularies": False}
IWSLT |= {"max_tokens": 4000, "weight_decay": 1e-4, "lowercase": True, "task": "translation"}
WMT = {"generation_num_beams": 4, "length_penalty": 0.6, "attention_dropout": 0.1, "task": "translation"}
WMT |= {"separate_vocabularies": False}
PAPER = {"order_paths": "product", "shared_encoder": True, "gumbel_per_pass": False, "weighted_smoothing": True}
PAPER |= {"predictor_dropout": 0.0, "adam_epsilon": 1e-9}
RELEASED = {"order_paths": "paired", "shared_encoder": False, "gumbel_per_pass": True, "weighted_smoothing": False}
RELEASED |= {"predictor_dropout": 0.3, "adam_epsilon": 1e-8}
CODE = {"task": "code", "language": "python", "lowercase": False, "separate_vocabularies": True}
CODE |= {"tokenizer_model": "word", "target_vocab_size": 50_000}
IOT = {"clamp_gumbel": True, "gumbel_temperature": 20, "gumbel_temperature_min": 2, "gumbel_temperature_decay": 0}
IOT |= {"max_steps": 100_000, "load_best_model_at_end": True, "norm_position": "post", "hidden_act": "relu"}
IOT |= {"predict_order": True, "layerdrop": 0.0}
SUMMARIES = {"task": "summarization", "lowercase": False}
# orders; vocabulary, width, feed-forward width, heads, blocks; other settings
ORDERS = {
    **{
        f"iot_n{len(n)}": (n, (10_152, 512, 1024, 4, 6), IWSLT | PAPER)
        for n in ("46", "146", "1246", "12456", "123456")
    },
    "iot_released": ("1246", (10_152, 512, 1024, 4, 6), IWSLT | RELEASED),
    "iot_wmt": ("1246", (32_768, 1024, 4096, 16, 6), WMT | PAPER),
    "iot_code": ("1246", (18_000, 256, 1024, 4, 3), IWSLT | PAPER | CODE),
    "iot_summarization": ("1246", (29_000, 512, 2048, 8, 6), IWSLT | PAPER | SUMMARIES),
}
LARGE = {"hidden_size": 1024, "num_attention_heads": 16, "adaptive_factor": 4, "dropout": 0.2, "block_size": 384}
LARGE |= {"attention_dropout": 0.2, "activation_dropout": 0.2, "warmup_steps": 16000, "evaluation_clamp_length": 1000}
LAMB = {"optimizer": "jitlamb", "learning_rate": 0.01, "adam_epsilon": 1e-6, "weight_decay": 0, "max_grad_norm": 0.25}
BASE = LAMB | {"hidden_size": 512, "intermediate_size": 2048, "block_size": 192, "memory_length": 192}
BASE |= {"evaluation_length": 64, "evaluation_memory_length": 640, "evaluation_clamp_length": 400}
BYTES = {"block_size": 512, "memory_length": 512, "evaluation_length": 128, "evaluation_memory_length": 2052}
BYTES |= {"adaptive_cutoffs": None, "optimizer": None, "learning_rate": 2.5e-4, "evaluation_clamp_length": 820}
BYTES |= {"tokenizer_model": "byte"}
SPANS = {"optimizer": "adagrad", "max_tensor_grad_norm": 0.03, "max_grad_norm": 0, "learning_rate": 0.07}
SPANS |= {"warmup_steps": 32000, "attention_span": 8192, "block_size": 512, "attention_dropout": 0.4}
BERT = {"objective": "mlm+nsp", "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-6, "weight_decay": 0.01}
BERT |= {"tokenizer_model": "wordpiece"}
MACARON = {"model_type": "macaron_bert", "optimizer": None, "lr_scheduler_type": "linear", "max_grad_norm": 0}
MACARON |= {"block_size": 384, "vocab_size": 32768, "learning_rate": 3e-4, "warmup_steps": 1}
NVLAMB = {"model_type": "par_bert", "optimizer": "lamb", "lr_scheduler_type": "polynomial", "max_grad_norm": 1}
NVLAMB |= {"lr_scheduler_kwargs": {"power": 0.5, "lr_end": 0.0}}
PHASE1 = {"block_size": 128, "max_position_embeddings": 512, "vocab_size": 30522}
PHASE1 |= {"learning_rate": 6e-3, "warmup_steps": 0.2843}
PHASE2 = {"block_size": 512, "model_name_or_path": "./runs/nvlamb_phase1", "learning_rate": 4e-3, "warmup_steps": 0.128}
DROP, LATER = {"learning_rate_drops": [150_000]}, {"learning_rate_drops": [250_000]}
WORDS = {"optim": "sgd", "optim_args": "momentum=0.99,nesterov=True", "learning_rate": 1, "weight_decay": 0}
WORDS |= {"warmup_steps": 16_000, "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-4}}
WORDS |= {"max_grad_norm": 0.1, "block_size": 3072, "context_window": 2560, "per_device_eval_batch_size": 1}
# order and parameters, as far as the sources tell them; rows of an update, updates; settings
LANGUAGE_MODELS = {
    # fairseq's 246,933,504 without those of nine rows that no word has
    "sandwich_wt103": ("s6(sf)10f6", 246_932_928, 24, 286_000, WORDS | {"adaptive_cutoffs": [20_000, 60_000]}),
    "sandwich_books": ("s7(sf)9f7", 231_231_488, 24, 286_000, WORDS | {"adaptive_cutoffs": None}),
    "par_wt103_base": ("(sfff)6f8", 199_840_218, 256, 40_000, BASE),
    "xl_wt103_base": ("(sf)16", 191_950_298, 256, 40_000, BASE),
    "par_wt103_large": ("(sfff)7f8", None, 128, 100_000, LAMB | LARGE),
    "xl_wt103_large": ("(sf)18", 285_167_482, 128, 100_000, LAMB | LARGE),
    "par_enwik8": ("(sff)5f9", None, 22, 400_000, BYTES),
    "xl_enwik8": ("(sf)12", None, 22, 400_000, BYTES),
    "par_text8": ("(sff)5f9", None, 22, 400_000, BYTES | {"tokenizer_model": "char"}),
    "xl_text8": ("(sf)12", None, 22, 400_000, BYTES | {"tokenizer_model": "char"}),
    "sandwich_enwik8": (
        "s5(sf)19f5",
        None,
        64,
        170_000,
        SPANS | {"tokenizer_model": "byte"} | DROP,
    ),
    "sandwich_text8": (
        "s3(sf)21f3",
        None,
        64,
        270_000,
        SPANS | {"tokenizer_model": "char"} | LATER,
    ),
    "nvlamb_phase1": (None, None, 65_536, 7038, BERT | NVLAMB | PHASE1),
    "nvlamb_phase2": (None, None, 32_768, 1563, BERT | NVLAMB | PHASE2),
    # 128,000 tokens in an update
    "macaron_bert": (None, None, pytest.approx(128_000 / 384, rel=0.01), 800_000, BERT | MACARON),
}

GRID = {"batch_sizes": [16, 32], "learning_rates": [5e-5, 3e-5], "epochs": [3, 4, 5], "select": "best"}
GRID |= {"seeds": [100, 200, 300, 400, 500, 600], "max_length": 384, "warmup_steps": 0.1, "weight_decay": 0}
MEDIAN = {"select": "median", "max_length": 128, "num_train_epochs": 3, "weight_decay": 0.01}
SQUAD = {"max_seq_length": 384, "doc_stride": 128, "num_train_epochs": 2, "learning_rate": 4.6e-5, "warmup_steps": 0.2}
# rows of an update, settings
FINE_TUNING = {
    "macaron_glue": (glue, None, GRID),
    "par_sst2": (glue, 1024, MEDIAN | {"learning_rates": [1e-5], "warmup_steps": 0.1}),
    "par_mrpc": (glue, 128, MEDIAN | {"learning_rates": [1.8e-5], "warmup_steps": 0.3}),
    "par_squad": (squad, 256, SQUAD),
}


def assert_settings(found, expected):
    assert {name: found[name] for name in expected} == expected


def count(config, auto_class):
    with torch.device("meta"):
        return getattr(transformers, auto_class).from_config(config).num_parameters()


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_language_models(name, tmp_path, monkeypatch):
    order, size, rows, updates, expected = LANGUAGE_MODELS[name]
    # where phase 1 left its model
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "nvlamb_phase1").mkdir(parents=True)
    run, flags, corpus, args = pretrain.parse([name, "--train_file", "text.txt"])
    assert_settings(vars(run) | flags | vars(args), expected)
    assert corpus.train_file == "text.txt"
    assert (args.per_device_train_batch_size * args.gradient_accumulation_steps, args.max_steps) == (rows, updates)
    if order:
        config = load_config(None, pretrain.PRETRAINED[run.model_type], flags, vocab_size=run.vocab_size)
        assert config.sublayer_order == order
        settings = evaluation_settings(config, run)
        assert settings.get("same_length", False) == (run.model_type == "par_transformer_xl")
        assert size in (None, count(config, "AutoModelForCausalLM"))


@pytest.mark.parametrize("name", TRANSLATION)
def test_translation(name):
    size, expected = TRANSLATION[name]
    run, flags, data, args = seq2seq.parse([name, "--train_file", "a.jsonl", "--use_cpu"])
    assert_settings(vars(run) | flags | vars(data) | vars(args), TRANSFORMER | expected)
    config = seq2seq.ENCODER_DECODERS[run.model_type](vocab_size=run.vocab_size, **flags)
    assert size in (None, count(config, "AutoModelForSeq2SeqLM"))


@pytest.mark.parametrize("name", ORDERS)
def test_instance_wise_orders(name):
    numbers, (vocabulary, width, feed_forward, heads, blocks), expected = ORDERS[name]
    run, flags, data, args = seq2seq.parse([name, "--train_file", "a.jsonl", "--use_cpu"])
    assert run.model_type == "iot_seq2seq"
    assert args.output_dir == f"runs/{name}"
    config = seq2seq.ENCODER_DECODERS[run.model_type](vocab_size=run.vocab_size, **flags)
    assert_settings(vars(config) | vars(run) | vars(data) | vars(args), IOT | expected)
    assert config.encoder_orders == ["sf"]
    assert config.decoder_orders == [TABLE_11[int(number)] for number in numbers]
    assert config.num_attention_heads == heads
    attention = 4 * (width + 1) * width
    per_block = 3 * attention + 2 * (2 * width * feed_forward + feed_forward + width) + 5 * 2 * width
    assert count(config, "AutoModelForSeq2SeqLM") == vocabulary * width + blocks * per_block + len(numbers) * width


@pytest.mark.parametrize("name", FINE_TUNING)
def test_fine_tuning(name):
    command, batch, expected = FINE_TUNING[name]
    words = [name, "--model_name_or_path", "bert", "--use_cpu"]
    flags = command.parse([*words, "--task_name", "mrpc"] if command is glue else words)
    found = {key: value for each in flags for key, value in vars(each).items()}
    assert_settings(found, expected)
    if batch:
        assert found["per_device_train_batch_size"] * found["gradient_accumulation_steps"] == batch


def test_orders_of_the_command_line_replace_those_of_the_recipe():
    flags = ["--train_file", "a.jsonl", "--use_cpu", "--decoder_orders", "(scf)", "csf", "--encoder_orders", "sf", "fs"]
    _, found, _, _ = seq2seq.parse(["iot_n4", *flags])
    assert_settings(found, {"decoder_orders": ["(scf)", "csf"], "encoder_orders": ["sf", "fs"]})


def test_help_shows_the_default_of_a_list(capsys):
    with pytest.raises(SystemExit):
        seq2seq.parse(["--model_type", "iot_seq2seq", "--help_all"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "['scf', 'fsc', 'csf', 'fcs'] when not given" in shown
