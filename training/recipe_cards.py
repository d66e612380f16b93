"""The cards of the recipes, made from the recipes: `python -m sublayers.training.recipe_cards [FOLDER]`."""

import argparse
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import ModelCard, ModelCardData
from tqdm.auto import tqdm
from transformers import AutoModelForPreTraining, AutoModelForSeq2SeqLM

from sublayers.model_card import citation, legend, paper, stacks
from sublayers.training.cli import expand_settings_file, parse_flags
from sublayers.training.config_flags import load_config
from sublayers.training.corpus import CorpusArguments
from sublayers.training.pretrain import parse as parse_pretrain
from sublayers.training.pretrain_arguments import FAMILIES as BERT_FAMILIES, PretrainingArguments
from sublayers.training.seq2seq import parse as parse_seq2seq
from sublayers.training.seq2seq_arguments import FAMILIES as SEQ2SEQ_FAMILIES
from sublayers.training.study import MODELS, StudyArguments, intermediate_size

RECIPES = Path(__file__).with_name("recipes")
TEMPLATE = Path(__file__).with_name("recipe_card_template.md")
GENERATED = "<!-- Written by `make cards` from the recipe. Change that instead. -->"

# the data that a command needs, in files that stand for anybody's
DATA = {
    "seq2seq": "--train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl",
    "pretrain": "--train_file train.jsonl --validation_file validation.jsonl",
    "study": "--train_file train.jsonl --validation_file validation.jsonl --glue_dir glue "
    "--squad_train_file squad/train.json --squad_validation_file squad/validation.json",
}
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
# by recipe, the cards that have what came of it here
MEASURED = {
    "bert_study": {"five orders of BERT": "../par_bert.md#quality-against-cost"},
    "multi30k": {
        "Transformer, Macaron and sandwiches": "../sandwich_seq2seq.md#translation-of-multi30k",
        "Macaron": "../macaron_seq2seq.md#what-we-measured",
        "IOT": "../iot_seq2seq.md#translation-of-multi30k",
    },
}


class Recipe(NamedTuple):
    """What a command makes of a recipe."""

    # by the name in the card, which for a single model is that of its family
    configs: dict[str, Any]
    auto_class: Any
    training: dict[str, str]
    task: str | None
    languages: list[str] | None = None


def main(argv: list[str] | None = None) -> None:
    """Write the cards of all recipes into a folder.

    Raises:
        FileExistsError: a file of that name is not such a card.
    """
    parser = argparse.ArgumentParser(prog="python -m sublayers.training.recipe_cards", description=__doc__)
    parser.add_argument("folder", nargs="?", default="model_cards/recipes", type=Path)
    folder = parser.parse_args(argv).folder
    folder.mkdir(parents=True, exist_ok=True)
    for recipe in tqdm(sorted(RECIPES.glob("*.yaml")), desc="cards", unit="recipe"):
        file = folder / f"{recipe.stem}.md"
        if file.exists() and GENERATED not in file.read_text(encoding="utf-8"):
            raise FileExistsError(f"{file} is no card of a recipe; choose another folder")
        file.write_text(recipe_card(recipe.stem), encoding="utf-8")


def recipe_card(name: str) -> str:
    """Describe a recipe in Markdown with the Hub's metadata: its orders, sizes, costs, command, settings and results.

    Raises:
        ValueError: there is no such recipe.
    """
    keys = {flag.split("=")[0] for flag in expand_settings_file([name])}
    command = "seq2seq" if "--task" in keys else "pretrain" if "--objective" in keys else "study"
    flags = f"{name} {DATA[command]} {COLUMNS.get(name, '')}".strip()
    recipe = {"seq2seq": _seq2seq, "pretrain": _pretrain, "study": _study}[command](flags.split())
    text = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")
    header = takewhile(lambda line: line.startswith("#"), text.splitlines())
    several = len(recipe.configs) > 1
    models, drawn = [], []
    for model, config in recipe.configs.items():
        with torch.device("meta"):
            models.append((model, config, recipe.auto_class.from_config(config).num_parameters()))
        drawn += [stack | {"name": model} if several else stack for stack in stacks(config)]
    families = sorted({config.model_type for config in recipe.configs.values()})
    # in the order of the families, each once
    citations = dict.fromkeys(citation(paper(family)) for family in families)
    data = ModelCardData(
        model_name=name,
        library_name="transformers",
        license="apache-2.0",
        pipeline_tag=recipe.task,
        language=recipe.languages,
        tags=sorted({"sublayers", "recipe", *families}),
    )
    card = ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        generated=GENERATED,
        name=name,
        header=" ".join(line.removeprefix("#").strip() for line in header),
        command=command,
        example=f"sublayers {command} {flags}",
        families=families,
        stacks=drawn,
        legend=legend(drawn),
        models=models,
        training=recipe.training,
        figures=FIGURES.get(name),
        measured=MEASURED.get(name),
        citations="\n".join(citations),
    )
    return f"{card}\n"


def _seq2seq(argv: list[str]) -> Recipe:
    run, flags, data, args = parse_seq2seq(argv)
    if run.separate_vocabularies:
        flags |= {"encoder_vocab_size": run.vocab_size, "share_encoder_decoder_embeddings": False}
    longest = max(data.max_source_length, data.max_target_length)
    config = load_config(
        None, SEQ2SEQ_FAMILIES[run.model_type], flags, vocab_size=run.vocab_size, max_position_embeddings=longest
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
    return Recipe(
        {run.model_type: config}, AutoModelForSeq2SeqLM, training, None if run.task == "code" else run.task, languages
    )


def _pretrain(argv: list[str]) -> Recipe:
    run, flags, _, args = parse_pretrain(argv)
    if run.model_name_or_path:
        # a second phase goes on with the model of the first, another recipe
        [config] = _pretrain([Path(run.model_name_or_path).name]).configs.values()
    else:
        family = BERT_FAMILIES[run.model_type]
        config = load_config(None, family, flags, vocab_size=run.vocab_size, max_position_embeddings=run.block_size)
    pairs = args.per_device_train_batch_size * args.gradient_accumulation_steps
    batch = f"{pairs:,} pairs of segments, {run.block_size} tokens each at most"
    training = _training(args, batch, config, "LAMB" if run.optimizer == "lamb" else "AdamW")
    return Recipe({run.model_type: config}, AutoModelForPreTraining, training, "fill-mask")


def _study(argv: list[str]) -> Recipe:
    args, _ = parse_flags(expand_settings_file(argv), [StudyArguments, CorpusArguments], "sublayers study")
    configs = {}
    for name in args.models:
        model_type, order = MODELS[name]
        flags = {
            "objective": "mlm+nsp",
            "model_type": model_type,
            "sublayer_order": order,
            "hidden_size": args.hidden_size,
            "intermediate_size": intermediate_size(order, args.hidden_size),
            "num_attention_heads": args.num_attention_heads,
            "vocab_size": args.vocab_size,
        }
        pretrained = _pretrain([*(f"--{key}={value}" for key, value in flags.items()), *args.pretraining_flags.split()])
        configs[name] = pretrained.configs[model_type]
    training = pretrained.training | {
        f"fine-tuning on {', '.join(args.tasks)}": f"`{args.glue_flags}`",
        "fine-tuning on SQuAD": f"`{args.squad_flags}`",
        "seeds": ", ".join(map(str, args.seeds)),
    }
    return pretrained._replace(configs=configs, training=training)


def _training(args: PretrainingArguments, batch: str, config: Any, optimizer: str = "AdamW") -> dict[str, str]:
    schedule = args.lr_scheduler_type.replace("_", " ")
    options: Any = args.lr_scheduler_kwargs
    if options:
        schedule += f" ({', '.join(f'{name} {value:g}' for name, value in options.items())})"
    return {
        "updates": f"{args.max_steps:,}",
        "batch": batch,
        "optimizer": f"{optimizer}, betas {args.adam_beta1:g} and {args.adam_beta2:g}, epsilon {args.adam_epsilon:g}, "
        f"weight decay {args.weight_decay:g}",
        "learning rate": f"{args.learning_rate:g}, {schedule}",
        "warm-up": f"{args.get_warmup_steps(args.max_steps):,} updates",
        "gradient norm": f"clipped at {args.max_grad_norm:g}" if args.max_grad_norm else "not clipped",
        "dropout": f"{config.dropout:g}, of attention weights {config.attention_dropout:g}, inside feed-forward "
        f"{config.activation_dropout:g}",
    }


if __name__ == "__main__":
    main()
