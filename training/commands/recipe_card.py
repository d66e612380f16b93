"""The card of a recipe: its orders, their costs, its settings, and what the paper reports of it."""

from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
import yaml
from huggingface_hub import ModelCard, ModelCardData
from transformers import AutoModelForSeq2SeqLM

from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.hub.model_card import legend, stacks
from sublayers.hub.papers import citation, paper
from sublayers.training.commands.pretrain import (
    OBJECTIVES,
    PRETRAINED,
    config_defaults,
    parse as parse_pretrain,
)
from sublayers.training.commands.seq2seq import ENCODER_DECODERS, parse as parse_seq2seq
from sublayers.training.flags import RECIPES, read_settings, recipes
from sublayers.training.trainers.arguments import FromScratchArguments
from sublayers.training.trainers.language_modeling import evaluation_settings
from sublayers.training.trainers.start import load_config

TEMPLATE = Path(__file__).with_name("recipe_card_template.md")

# names of files, in place of the user's, for the data that a command needs
DATA = {
    "seq2seq": "--train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl",
    "pretrain": "--train_file train.jsonl --validation_file validation.jsonl",
}
OPTIMIZERS = {None: "AdamW", "lamb": "LAMB", "jitlamb": "LAMB", "adagrad": "Adagrad"}


class Recipe(NamedTuple):
    """What a command makes of a recipe."""

    config: Any
    auto_class: Any
    training: dict[str, str]
    task: str | None
    languages: list[str] | None = None


def make_recipe(command: str, name: str) -> tuple[str, Recipe]:
    """Return the flags of a command that a recipe and its data stand for, and what the command makes of them.

    Raises:
        ValueError: there is no such recipe, or it trains several models.
    """
    columns = read_card(recipes(command)[name]).get("columns", "") if name in recipes(command) else ""
    flags = f"{name} {DATA[command]} {columns}".strip()
    return flags, MAKERS[command](flags.split())


def read_card(recipe: Path) -> dict[str, Any]:
    """Read what only the card of a recipe tells.

    That are the `columns` of the texts of a pair; the `figures` of the paper, where it is clear that they are the
    recipe's, which authors' other code, contradictions and open sizes leave open; the families whose cards have what
    was `measured` here; and whether the recipe `is_ours`, which no paper and no released code tells.
    """
    return yaml.safe_load(recipe.read_text("utf-8")).get("card", {})


def recipe_card(name: str) -> str:
    """Describe a recipe in Markdown with the Hub's metadata: its orders, sizes, costs, command, settings and results.

    Of one that trains several models, or what the user names, the card has the settings alone.
    """
    [path] = RECIPES.rglob(f"{name}.yaml")
    command = path.parent.name
    lines = takewhile(lambda line: line.startswith("#"), path.read_text("utf-8").splitlines())
    header = " ".join(line.removeprefix("#").strip() for line in lines)
    if command not in MAKERS:
        settings = yaml.safe_dump(read_settings(name, command), sort_keys=False, allow_unicode=True, width=120)
        return f"# Recipe `{name}`\n\n{header}\n\n```yaml\n{settings}```\n"
    flags, recipe = make_recipe(command, name)
    told = read_card(path)
    drawn = stacks(recipe.config)
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
        header=header,
        command=command,
        example=f"sublayers {command} {flags}",
        stacks=drawn,
        legend=legend(drawn),
        config=recipe.config,
        num_parameters=num_parameters,
        training=recipe.training,
        figures=told.get("figures"),
        measured=told.get("measured"),
        has_sources=not told.get("is_ours"),
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
