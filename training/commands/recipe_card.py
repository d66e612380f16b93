"""The card of a recipe: its orders, their costs, its settings, and what the paper reports of it."""

from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub import ModelCard, ModelCardData
from transformers import AutoModelForSeq2SeqLM

from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.hub.model_card import citation, legend, paper, stacks
from sublayers.training.commands.pretrain import (
    OBJECTIVES,
    PRETRAINED,
    config_defaults,
    evaluation_settings,
    parse as parse_pretrain,
)
from sublayers.training.commands.seq2seq import ENCODER_DECODERS, parse as parse_seq2seq
from sublayers.training.flags import recipes
from sublayers.training.trainers.arguments import FromScratchArguments
from sublayers.training.trainers.start import load_config

TEMPLATE = Path(__file__).with_name("recipe_card_template.md")

# the data that a command needs, in files that stand for anybody's
DATA = {
    "seq2seq": "--train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl",
    "pretrain": "--train_file train.jsonl --validation_file validation.jsonl",
}
OPTIMIZERS = {None: "AdamW", "lamb": "LAMB", "jitlamb": "LAMB", "adagrad": "Adagrad"}
DE_EN, EN_DE = "--source de --target en", "--source en --target de"
# the columns that hold the texts of a pair, where the recipe does not say it
COLUMNS = {
    **dict.fromkeys(("iot_n2", "iot_n3", "iot_n4", "iot_n5", "iot_released", "macaron_small"), DE_EN),
    **dict.fromkeys(("iot_wmt", "macaron_base", "macaron_big", "sandwich_wmt"), EN_DE),
    "iot_code": "--source description --target code",
    "iot_summarization": "--source article --target headline",
}


class Figure(NamedTuple):
    """What a paper reports, and where."""

    data: str
    metric: str
    score: str
    baseline: str
    where: str


# only where it is clear that the figure is the recipe's: not where the authors' code differs (iot_released), or where
# the paper contradicts itself or leaves sizes, tokens or the metric open (iot_summarization, iot_code)
FIGURES = {
    "sandwich_wmt": [Figure("WMT'14 En-De, newstest2014", "BLEU", "28.81", "28.74 ± 0.15", "Table 6, encoder, k = 3")],
    "macaron_small": [Figure("IWSLT'14 De-En, test", "tokenized BLEU", "35.4", "34.4", "Table 1, small")],
    "macaron_base": [Figure("WMT'14 En-De, test", "tokenized BLEU", "28.9", "27.3", "Table 1, base")],
    "macaron_big": [Figure("WMT'14 En-De, test", "tokenized BLEU", "30.2", "28.4", "Table 1, big")],
    "macaron_bert": [Figure("GLUE without WNLI, test, after fine-tuning", "average", "79.7", "77.4", "Table 2")],
    "par_wt103_base": [Figure("WikiText-103, test", "perplexity", "22.7", "22.7", "Table 1, base")],
    "par_wt103_large": [Figure("WikiText-103, test", "perplexity", "18.4", "18.4", "Table 2, large")],
    "sandwich_enwik8": [Figure("enwik8, test", "bits per byte", "0.968", "0.9752 ± 0.0008", "Table 5, k = 5")],
    "sandwich_text8": [Figure("text8, test", "bits per character", "1.076", "1.0802 ± 0.0103", "Table 5, k = 3")],
    "nvlamb_phase2": [
        Figure(
            "SQuAD 1.1, development, after fine-tuning",
            "F1, median of 5",
            "87.4",
            "88.4",
            "Table 3, which names no rates",
        ),
        Figure(
            "SST-2, development, after fine-tuning",
            "accuracy, median of 5",
            "91.6",
            "91.5",
            "Table 3, which names no rates",
        ),
        Figure(
            "MRPC, development, after fine-tuning",
            "accuracy, median of 5",
            "89.2",
            "88.7",
            "Table 3, which names no rates",
        ),
    ],
    **{
        f"iot_n{n}": [Figure("IWSLT'14 De-En, test", "tokenized BLEU", score, "34.64", f"Table 13, N = {n}")]
        for n, score in {2: "35.32", 3: "35.58", 4: "35.62", 5: "35.65"}.items()
    },
    "iot_wmt": [
        Figure("WMT'14 En-De, test", "tokenized BLEU", "30.03", "29.12", "Table 14, N = 4"),
        Figure("WMT'16 Ro-En, test", "tokenized BLEU", "38.83", "37.73", "Table 14, N = 4"),
    ],
}
# by recipe, the cards of families that have what came of it here
MEASURED = {"multi30k": ["sandwich_seq2seq", "macaron_seq2seq", "iot_seq2seq"]}


class Recipe(NamedTuple):
    """What a command makes of a recipe."""

    config: Any
    auto_class: Any
    training: dict[str, str]
    task: str | None
    languages: list[str] | None = None


# recipes that no paper and no released code tells
OWN = {"modern"}


def make_recipe(command: str, name: str) -> tuple[str, Recipe]:
    """Return the flags of a command that a recipe and its data stand for, and what the command makes of them.

    Raises:
        ValueError: there is no such recipe, or it trains several models.
    """
    flags = f"{name} {DATA[command]} {COLUMNS.get(name, '')}".strip()
    return flags, MAKERS[command](flags.split())


def recipe_card(name: str) -> str:
    """Describe a recipe in Markdown with the Hub's metadata: its orders, sizes, costs, command, settings and results.

    Raises:
        ValueError: there is no such recipe, or it trains several models.
    """
    [command, *_] = [command for command in MAKERS if name in recipes(command)] or ["seq2seq"]
    flags, recipe = make_recipe(command, name)
    drawn = stacks(recipe.config)
    header = takewhile(lambda line: line.startswith("#"), recipes(command)[name].read_text("utf-8").splitlines())
    with torch.device("meta"):
        num_parameters = recipe.auto_class.from_config(recipe.config).num_parameters()
    family = recipe.config.model_type
    data = ModelCardData(
        model_name=name,
        library_name="transformers",
        license="apache-2.0",
        pipeline_tag=recipe.task,
        language=recipe.languages,
        tags=sorted({"sublayers", "recipe", family}),
    )
    card = ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        name=name,
        header=" ".join(line.removeprefix("#").strip() for line in header),
        command=command,
        example=f"sublayers {command} {flags}",
        stacks=drawn,
        legend=legend(drawn),
        config=recipe.config,
        num_parameters=num_parameters,
        training=recipe.training,
        figures=FIGURES.get(name),
        measured=MEASURED.get(name),
        has_sources=name not in OWN,
        citations=citation(paper(family)),
    )
    return f"{card}\n"


def _seq2seq(argv: list[str]) -> Recipe:
    run, flags, data, args = parse_seq2seq(argv)
    if run.separate_vocabularies:
        flags |= {"encoder_vocab_size": run.vocab_size, "share_encoder_decoder_embeddings": False}
    longest = max(data.max_source_length, data.max_target_length)
    config = load_config(
        None, ENCODER_DECODERS[run.model_type], flags, vocab_size=run.vocab_size, max_position_embeddings=longest
    )
    # every recipe counts tokens
    tokens = run.max_tokens * args.gradient_accumulation_steps  # type: ignore[operator]
    batch = f"pairs of at most {tokens:,} tokens on the larger side, padding included"
    training = _training(args, batch, config)
    training["label smoothing"] = f"{args.label_smoothing_factor:g}"
    if run.average_checkpoints > 1:
        training["kept"] = f"the mean of the last {run.average_checkpoints} checkpoints"
    elif args.load_best_model_at_end:
        training["kept"] = "the checkpoint with the least validation loss"
    training["writing"] = f"{args.generation_num_beams} beams, length penalty {run.length_penalty or 1:g}"
    # the Hub has no task for code
    languages = [str(data.source), str(data.target)] if run.task == "translation" else None
    return Recipe(config, AutoModelForSeq2SeqLM, training, None if run.task == "code" else run.task, languages)


def _pretrain(argv: list[str]) -> Recipe:
    run, flags, _, args = parse_pretrain(argv)
    if run.model_name_or_path:
        # a second phase goes on with the model of the first, another recipe
        config = _pretrain([Path(run.model_name_or_path).name]).config
    else:
        family = PRETRAINED[run.model_type]
        config = load_config(None, family, flags, **config_defaults(run, vocab_size=run.vocab_size))
    examples = args.per_device_train_batch_size * args.gradient_accumulation_steps
    segments = "rows of a stream" if run.objective == "clm" else "pairs of segments"
    batch = f"{examples:,} {segments}, {run.block_size} tokens each at most"
    training = _training(args, batch, config, OPTIMIZERS[run.optimizer])
    if run.max_tensor_grad_norm:
        training["gradient norm"] = f"that of each tensor clipped at {run.max_tensor_grad_norm:g}"
    if isinstance(config, RecurrentLMConfig):
        length, settings = run.evaluation_length or run.block_size, evaluation_settings(config, run)
        training["evaluation"] = ", ".join([f"segments of {length}", *(f"{k} {v}" for k, v in settings.items())])
    task = "text-generation" if run.objective == "clm" else "fill-mask"
    return Recipe(config, getattr(transformers, OBJECTIVES[run.objective].auto_class), training, task)


def _training(args: FromScratchArguments, batch: str, config: Any, optimizer: str = "AdamW") -> dict[str, str]:
    schedule = args.lr_scheduler_type.replace("_", " ")
    options: Any = args.lr_scheduler_kwargs
    if options:
        schedule += f" ({', '.join(f'{name} {value:g}' for name, value in options.items())})"
    moments = f", betas {args.adam_beta1:g} and {args.adam_beta2:g}, epsilon {args.adam_epsilon:g}"
    moments = "" if optimizer == "Adagrad" else moments
    return {
        "updates": f"{args.max_steps:,}",
        "batch": batch,
        "optimizer": f"{optimizer}{moments}, weight decay {args.weight_decay:g}",
        "learning rate": f"{args.learning_rate:g}, {schedule}",
        "warm-up": f"{args.get_warmup_steps(args.max_steps):,} updates",
        "gradient norm": f"clipped at {args.max_grad_norm:g}" if args.max_grad_norm else "not clipped",
        "dropout": f"{config.dropout:g}, of attention weights {config.attention_dropout:g}, inside feed-forward "
        f"{config.activation_dropout:g}",
    }


MAKERS = {"pretrain": _pretrain, "seq2seq": _seq2seq}
