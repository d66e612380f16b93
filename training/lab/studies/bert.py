"""`sublayers study bert`: pre-train and fine-tune several orders alike, and draw quality against cost."""

from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, NamedTuple

from sublayers.configuration.order import Order, compact, interleaved
from sublayers.configuration.sublayer_cost import flops, parameters
from sublayers.hub.model_card import RUN
from sublayers.training.data.corpus import CorpusArguments, load_corpus
from sublayers.training.data.tokenizers import sample, train_tokenizer
from sublayers.training.flags import expand_settings_file, flag, parse_flags
from sublayers.training.folders import whole_folder
from sublayers.training.lab.runs import as_flags, data_names, flags_of, read_results, run_once
from sublayers.training.lab.studies.skeleton import Study, scores
from sublayers.training.metrics.score_pictures import Panel, draw_scores
from sublayers.training.results import Row, score
from sublayers.training.trials import TrialsArguments

# the positions that are read in the cost that is drawn
LENGTH = 128
COST = "cost of classifying"
# flags that may differ when a study goes on
FREE = ("models", "seeds", "output_dir", "jobs", "storage")
# heading, scale and digits of the figures of pre-training
PRETRAINING = {
    "eval_loss": ("pre-training loss (nats)", 1, 2),
    "eval_masked_accuracy": ("masked words right (%)", 100, 1),
    "eval_next_sentence_accuracy": ("next sentence right (%)", 100, 1),
}


class Studied(NamedTuple):
    """A model of the study: its family, and the order of its sublayers.

    A control of equal cost has a `width` as a share of the others', and feed-forward sublayers four times as wide as
    its states; without one, a model has BERT's number of sublayer parameters.
    """

    model_type: str
    order: str
    width: float | None = None

    @property
    def kind(self) -> str:
        """What the model is beside BERT."""
        if self.width not in (None, 1):
            return "narrower"
        if Order(self.order).has_fixed_states:
            return "attending tail"
        return "plain" if self.order == interleaved(Order(self.order).counts["s"]) else "re-ordered"

    def sizes(self, hidden_size: int, num_attention_heads: int) -> tuple[int, int]:
        """Find the widths of states and of feed-forward sublayers, among models of that width."""
        if self.width is None:
            return hidden_size, intermediate_size(self.order, hidden_size)
        own = num_attention_heads * round(self.width * hidden_size / num_attention_heads)
        return own, 4 * own


MODELS = {
    "bert": Studied("par_bert", "(sf)12"),
    "par_bert": Studied("par_bert", "(sff)5f9"),
    "macaron_bert": Studied("macaron_bert", "(fsf)12"),
    "s12f12": Studied("par_bert", "s12f12"),
    "s5f19": Studied("par_bert", "s5f19"),
    # what s12f12 and s5f19 cost can be had with fewer layers, or narrower ones
    "5_layers": Studied("par_bert", "(sf)5", 1),
    "3_layers": Studied("par_bert", "(sf)3", 1),
    "2_layers": Studied("par_bert", "(sf)2", 1),
    "narrow_s12f12": Studied("par_bert", "(sf)12", 0.625),
    "narrow_s5f19": Studied("par_bert", "(sf)12", 0.375),
}


@dataclass
class StudyArguments(TrialsArguments):
    """Flags for the models, how long they are trained, and on what."""

    _argument_group_name: ClassVar[str] = "models, training and tasks"

    glue_dir: str = flag("folder with one for each GLUE task, as --data_dir of sublayers glue", MISSING)
    squad_train_file: str | None = flag("as --train_file of sublayers squad")
    squad_validation_file: str | None = flag("as --squad_train_file")
    output_dir: str = flag("what is finished in it is not run again", "runs/study")
    models: list[str] = flag(f"of {', '.join(MODELS)}, or orders of layers as wide as BERT's", [*MODELS])
    tasks: list[str] = flag("GLUE tasks to fine-tune on", ["sst2", "mrpc", "cola", "stsb"])
    seeds: list[int] = flag("one pre-training and fine-tuning each", [0])
    hidden_size: int = flag("width of the models", 128)
    num_attention_heads: int = flag("attention heads", 4)
    vocab_size: int = flag("largest size of the tokenizer, which is trained first", 8192)
    pretraining_flags: str = flag("flags of sublayers pretrain, in one text", "")
    glue_flags: str = flag("flags of sublayers glue", "")
    squad_flags: str = flag("flags of sublayers squad", "")


def main(argv: list[str]) -> dict[str, Any]:
    """Run every model that is not finished, and report on all that are.

    Models have BERT's number of sublayer parameters: what attention saves widens the feed-forward sublayers. Controls
    have fewer, and cost what one of the others does. All are trained with the same flags and on the same data. The
    output folder has `results.csv` and a picture; the study has every number.

    Returns:
        The scores of each finished model by seed and task, its parameters and its cost.

    Raises:
        ValueError: bad flags, an unknown model, an order that cannot be read, or what the other commands raise.
    """
    args, corpus = parse_flags(
        expand_settings_file(argv, "study"),
        [StudyArguments, CorpusArguments],
        "sublayers study bert [SETTINGS.yaml] --glue_dir DIR [--name value ...]",
    )
    models = MODELS | {name: read_model(name) for name in args.models}
    settings = {name: value for name, value in (vars(args) | vars(corpus)).items() if name not in FREE}
    study = Study(["bert", *argv], args, settings)
    if not (study.folder / "tokenizer").exists():
        texts = sample(load_corpus(corpus)["train"], "wordpiece")
        # another process may make the same
        with whole_folder(study.folder / "tokenizer") as new:
            train_tokenizer(texts, "wordpiece", args.vocab_size).save_pretrained(new)
    grid = [{"model": name, "seed": seed} for seed in args.seeds for name in args.models]
    study.run(partial(train, args=args, corpus=corpus), grid)
    runs = study.by_model([*models])
    found = {name: {seed: run["scores"] for seed, run in by_seed.items()} for name, by_seed in runs.items()}
    tasks = [f"GLUE {task}" for task in args.tasks] + ["SQuAD"] * bool(args.squad_train_file)
    rows = [row_of(name, by_seed) for name, by_seed in found.items()]
    study.report(rows, [*data_names(corpus), *tasks])
    panel = Panel("mean", COST, "mean score over the tasks", f"FLOPs of classifying {LENGTH} tokens, relative to BERT")
    draw_scores(rows, [panel], study.folder / "quality_against_cost.svg")
    study.end("the figures and a picture of quality against cost are in")
    return found


def intermediate_size(order: str, hidden_size: int) -> int:
    """Find the feed-forward width that gives an order as many parameters as BERT of 12 layers has in its sublayers.

    Rounded to a multiple of 8, which processors like.
    """
    budget = parameters(interleaved(12), hidden_size, 4 * hidden_size)
    fixed = parameters(order, hidden_size, 0)
    return 8 * round((budget - fixed) / (parameters(order, hidden_size, 1) - fixed) / 8)


def read_model(name: str) -> Studied:
    """Find a model by its name, or make one of an order. Raises ValueError where it is neither."""
    if name in MODELS:
        return MODELS[name]
    try:
        return Studied("par_bert", compact(name), 1)
    except ValueError as error:
        raise ValueError(f"unknown model {name!r}; choose from {', '.join(MODELS)}, or write an order") from error


def train(model: str, seed: int, args: StudyArguments, corpus: CorpusArguments) -> tuple[float, dict[str, Any]]:
    """Pre-train a model and fine-tune it on every task, as far as that was not finished before.

    Returns:
        The mean score over the tasks, and all `scores`.
    """
    # this import takes seconds, for which --help does not wait
    from transformers import AutoModelForPreTraining

    folder, studied = Path(args.output_dir, f"{model}-{seed}"), read_model(model)
    width, inner = studied.sizes(args.hidden_size, args.num_attention_heads)
    pretrained = folder / "pretrained"

    def once(command: str, folder: Path, flags: dict[str, Any], more: str) -> dict[str, Any]:
        words = [command, *as_flags({**flags, "seed": seed}), *more.split()]
        # the file that is written last, and the one with the scores
        last, kept = ("results.json", "results.json") if command == "glue" else (RUN, "all_results.json")
        run_once(folder, f"{folder.name}: {model}, {studied.order}, seed {seed}", words, last)
        return read_results(folder / kept)

    flags = {
        "objective": "mlm+nsp",
        "model_type": studied.model_type,
        "sublayer_order": studied.order,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": args.num_attention_heads,
        "tokenizer_name_or_path": Path(args.output_dir) / "tokenizer",
        **flags_of(corpus),
    }
    pretraining = once("pretrain", pretrained, flags, args.pretraining_flags)
    start = {"model_name_or_path": pretrained}
    found: dict[str, Any] = {}
    for task in args.tasks:
        flags = {**start, "task_name": task, "data_dir": args.glue_dir}
        grid = once("glue", folder / task, flags, args.glue_flags)[task]
        found[task] = {"metric": grid["metric"], "score": grid["best"]["median"], "all": grid["best"]["runs"]}
    if args.squad_train_file:
        flags = {**start, "train_file": args.squad_train_file, "validation_file": args.squad_validation_file}
        metrics = once("squad", folder / "squad", flags, args.squad_flags)
        found["squad"] = {"metric": "f1", "score": metrics["eval_f1"] / 100, "all": metrics}
    sizes: dict[str, Any] = {"length": LENGTH, "read": 1, "num_attention_heads": args.num_attention_heads}
    bert = flops(interleaved(12), args.hidden_size, 4 * args.hidden_size, **sizes)
    about = {
        "order": studied.order,
        "parameters": AutoModelForPreTraining.from_pretrained(pretrained).num_parameters(),
        "hidden_size": width,
        "intermediate_size": inner,
        "cost": flops(studied.order, width, inner, **sizes) / bert,
        "pretraining": pretraining,
        "tasks": found,
    }
    return mean(result["score"] for result in found.values()), {"scores": about}


def row_of(name: str, by_seed: dict[str, Any]) -> Row:
    """Make a row of figures for a model: its cost, what it learned in pre-training, and its scores times 100."""
    first, *_ = runs = [*by_seed.values()]
    row = {"model": name, "order": first["order"], "kind": read_model(name).kind}
    row |= {"parameters": f"{first['parameters']}", "width": f"{first['hidden_size']}", COST: f"{first['cost']:.2f}"}
    row |= scores([run["pretraining"] for run in runs], PRETRAINING)
    for task, result in first["tasks"].items():
        row |= score(f"{task} ({result['metric']})", [100 * run["tasks"][task]["score"] for run in runs])
    means = [100 * mean(result["score"] for result in run["tasks"].values()) for run in runs]
    return row | score("mean", means) | {"seeds": ", ".join(by_seed)}
