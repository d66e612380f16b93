import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from sublayers import IOTSeq2SeqConfig
from sublayers.training.commands.seq2seq import parse

pytestmark = pytest.mark.slow

# the paper's choices (A.3) by the numbers of Table 11
TABLE_11 = {1: "scf", 2: "fsc", 3: "cfs", 4: "csf", 5: "sfc", 6: "fcs"}
TRANSLATION = {"task": "translation", "num_beams": 5, "length_penalty": None, "separate_vocabularies": False}
IWSLT = TRANSLATION | {"max_tokens": 4000, "weight_decay": 1e-4, "lowercase": True}
PAPER = {"order_paths": "product", "shared_encoder": True, "gumbel_per_pass": False, "weighted_smoothing": True}
PAPER |= {"predictor_dropout": 0.0, "adam_epsilon": 1e-9}
RELEASED = {"order_paths": "paired", "shared_encoder": False, "gumbel_per_pass": True, "weighted_smoothing": False}
RELEASED |= {"predictor_dropout": 0.3, "adam_epsilon": 1e-8}
SHARED = {"diversity_weight": 0.1, "sharpness_weight": 0.01, "min_order_probability": 0.05, "clamp_gumbel": True}
SHARED |= {"gumbel_temperature": 20, "gumbel_temperature_min": 2, "gumbel_temperature_decay": 0, "dropout": 0.3}
SHARED |= {"adam_beta1": 0.9, "adam_beta2": 0.98, "learning_rate": 5e-4, "warmup_steps": 4000, "max_steps": 100_000}
SHARED |= {"label_smoothing_factor": 0.1, "lr_scheduler_type": "inverse_sqrt", "load_best_model_at_end": True}
SHARED |= {"norm_position": "post", "hidden_act": "relu", "predict_order": True, "layerdrop": 0.0}
# orders; vocabulary, width, feed-forward width, heads, blocks; other settings
RECIPES = {
    **{f"iot_n{len(n)}": (n, (10_152, 512, 1024, 4, 6), IWSLT | PAPER) for n in ("46", "146", "1246", "12456")},
    "iot_released": ("1246", (10_152, 512, 1024, 4, 6), IWSLT | RELEASED),
    "iot_wmt": (
        "1246",
        (32_768, 1024, 4096, 16, 6),
        TRANSLATION | PAPER | {"num_beams": 4, "length_penalty": 0.6, "attention_dropout": 0.1},
    ),
    "iot_code": (
        "1246",
        (50_000, 256, 1024, 4, 3),
        IWSLT | PAPER | {"task": "code", "language": "python", "lowercase": False, "separate_vocabularies": True},
    ),
    "iot_summarization": (
        "1246",
        (29_000, 512, 2048, 8, 6),
        IWSLT | PAPER | {"task": "summarization", "lowercase": False},
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_settings_and_the_size_of_its_paper(name):
    numbers, (vocabulary, width, feed_forward, heads, blocks), expected = RECIPES[name]
    run, flags, data, args = parse([name, "--train_file", "a.jsonl", "--use_cpu"])
    config = IOTSeq2SeqConfig(vocab_size=run.vocab_size, **flags)
    found = vars(config) | vars(run) | vars(data) | vars(args) | {"num_beams": args.generation_num_beams}
    for key, value in (SHARED | expected).items():
        assert found[key] == value, key
    assert run.model_type == "iot_seq2seq"
    assert args.output_dir == f"runs/{name}"
    assert config.encoder_orders == ["sf"]
    assert config.decoder_orders == [TABLE_11[int(number)] for number in numbers]
    assert config.num_attention_heads == heads
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(config)
    attention = 4 * (width + 1) * width
    per_block = 3 * attention + 2 * (2 * width * feed_forward + feed_forward + width) + 5 * 2 * width
    assert model.num_parameters() == vocabulary * width + blocks * per_block + len(numbers) * width


def test_orders_of_the_command_line_replace_those_of_the_recipe():
    argv = ["iot_n4", "--train_file", "a.jsonl", "--use_cpu", "--decoder_orders", "(scf)", "csf"]
    assert parse([*argv, "--encoder_orders", "sf", "fs"])[1]["decoder_orders"] == ["(scf)", "csf"]
    assert parse([*argv, "--encoder_orders", "sf", "fs"])[1]["encoder_orders"] == ["sf", "fs"]


def test_help_shows_the_default_of_a_list(capsys):
    with pytest.raises(SystemExit):
        parse(["--model_type", "iot_seq2seq", "--help_all"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "['scf', 'fsc', 'csf', 'fcs'] when not given" in shown
