"""`sublayers prune`: find the sublayers that a trained model needs least, and keep the others."""

import sys
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sublayers.training.data.corpus import CorpusArguments, load_corpus
from sublayers.training.flags import flag, parse_flags
from sublayers.training.folders import claim, whole_folder

if TYPE_CHECKING:
    from sublayers.training.distill.subsets import Subset
    from sublayers.training.distill.teacher import Teacher

USAGE = "sublayers prune MODEL --budget SHARE [SHARE ...] --output_dir FOLDER [--name value ...]"
# the objectives that a model may be measured by, the first one by default, and what is read by each
OBJECTIVES = {
    "encoder": {"embeddings": "all", "states": "all"},
    "classifier": {"logits": "one"},
    "masked language model": {"words": "masked"},
    "language model": {"next": "all"},
    "encoder-decoder": {"next": "all"},
}
TABLE, PICTURE = "README.md", "subsets.svg"


@dataclass
class PruneArguments:
    """Flags for what is left, and how it is chosen."""

    _argument_group_name: ClassVar[str] = "budgets and search"

    source: str = flag("the model's folder or repository", MISSING, positional=True, metavar="MODEL")
    output_dir: str = flag("folder for the models, a journal of all subsets, a table and a picture", MISSING)
    budget: list[float] = flag("shares of the price of all sublayers, such as 0.5 0.33; a folder for each", [])
    price: Literal["milliseconds", "flops", "parameters", "cache"] = flag(
        "what is to be saved; milliseconds are measured on this machine", "flops"
    )
    read: Literal["all", "masked", "one", "next"] | None = flag(
        "positions that the price reads, see sublayers order; next: a token that is generated; default: by objective"
    )
    objective: Literal["embeddings", "states", "logits", "words", "next"] | None = flag(
        "what may change least: see sublayers distill; next: the loss of next tokens; default: by the model's head"
    )
    texts: int = flag("texts that the model is measured on, drawn from the training data", 128)
    batch_size: int = flag("texts of a batch; embeddings are compared within one", 128)
    max_length: int = flag("tokens of a text; what is longer is cut", 128)
    shape: str | None = flag("texts and tokens that are priced, such as 32x128; default: one text of --max_length")
    whole_rows: bool = flag("read documents (lines of a .txt) as they are, not sentence by sentence", False)
    beam: int = flag("subsets that a step of the search keeps, where there are too many to measure all", 8)
    seed: int = flag("of the texts", 0)


def main(argv: list[str]) -> None:
    """Measure a model with subsets of its sublayers, and save the best one of each budget.

    Args:
        argv: the model's folder or repository, then flags, see `sublayers prune --help`.

    Raises:
        FileExistsError: the output folder holds something else, or another run writes into it.
        OSError: there is no such model.
        ValueError: bad flags, a model whose sublayers cannot be taken out, a budget that nothing meets, or texts that
            cannot be read.
    """
    run, corpus_args = parse(argv)
    with claim(run.output_dir):
        prune(run, corpus_args, argv)


def parse(argv: list[str]) -> tuple[PruneArguments, CorpusArguments]:
    """Read the model's name and the flags.

    Raises:
        ValueError: unknown flags, or values out of range.
    """
    run, corpus_args = parse_flags(argv, (PruneArguments, CorpusArguments), USAGE)
    if not run.budget or not all(0 < budget < 1 for budget in run.budget):
        given = " ".join(map(str, run.budget)) or "nothing"
        raise ValueError(f"--budget {given} is no share of the whole price; give numbers between 0 and 1")
    for name in ("texts", "batch_size", "max_length", "beam"):
        if getattr(run, name) < 1:
            raise ValueError(f"--{name} {getattr(run, name)} is too small; give 1 or more")
    if corpus_args.streaming:
        raise ValueError("texts are drawn from all that there are; leave --streaming out")
    return run, corpus_args


def prune(run: PruneArguments, corpus_args: CorpusArguments, command: list[str]) -> None:
    """Do what `main` says. Raises what it raises."""
    source, folder = run.source, Path(run.output_dir)
    print(f"opening {source}", file=sys.stderr)
    # these imports take seconds, for which --help does not wait
    from sublayers.training.distill.subsets import check_prunable, is_model, layers_of
    from sublayers.training.distill.teacher import hash_weights
    from sublayers.training.distill.texts import hash_rows
    from sublayers.training.metrics.timing import read_shape
    from sublayers.training.prune.calibration import measuring
    from sublayers.training.prune.opening import calibrate, open_model, read_texts
    from sublayers.training.prune.prices import Use, measured, price_by
    from sublayers.training.prune.report import KINDS, Pruning, draw, write_table
    from sublayers.training.prune.search import remembering, search
    from sublayers.training.trainers.publish import all_arguments, record
    from sublayers.training.trainers.start import check_length
    from sublayers.training.trials import open_study

    teacher = open_model(source)
    model: Any = teacher.model
    config: Any = model.config
    check_prunable(config, source)
    check_length("max_length", run.max_length, config, teacher.tokenizer, least=3)
    known = OBJECTIVES[teacher.head.name]
    default, *_ = known
    objective: str = run.objective or default
    if objective not in known:
        raise ValueError(f"a {teacher.head.name} has no {objective}; choose from {', '.join(known)}")
    if run.read == "next" and objective != "next":
        raise ValueError(f"a {teacher.head.name} generates no tokens; give --read all, masked or one")
    read = run.read or ("one" if objective == "embeddings" and teacher.pooling == "cls" else known[objective])
    lengths = read_shape(run.shape or f"1x{run.max_length}")
    use = Use(read, lengths[0], len(lengths))
    texts, corpus = (run.texts, run.max_length, run.whole_rows, run.seed), load_corpus(corpus_args)
    rows, others = (read_texts(teacher, objective, *texts, corpus, split) for split in ("train", "validation"))
    calibration = calibrate(teacher, objective, rows, run.batch_size)
    about: dict[str, Any] = {"model": hash_weights(model), "texts": hash_rows(rows), "objective": objective}
    about |= {"batch_size": run.batch_size, "price": run.price, "max_length": run.max_length, **use._asdict()}
    study = open_study("pruning", folder, about)
    orders, price = tuple(config.orders.values()), price_by(run.price, model, use, study)
    full = tuple(range(config.num_sublayers))
    limits = partial(is_model, config=config), price, min(run.budget) * price(full), run.beam
    with measuring() as bar:
        losses = remembering(study, partial(calibration.losses, bar=bar), bar)
        layers = search(layers_of(*orders), losses, *limits)
        sublayers = layers | search([(place,) for place in full], losses, *limits)
    pruning = Pruning(orders, full, price, run.budget, {"sublayers": sublayers, "whole layers": layers})
    best = {(kind, budget): pruning.best(kind, budget) for kind in KINDS for budget in run.budget}
    if unmet := [budget for budget in run.budget if best["sublayers", budget] is None]:
        raise ValueError(f"no sublayers of {source} meet --budget {min(unmet):g}; give a larger one")
    about_run = record(["prune", *command], all_arguments(run, corpus_args), source)
    for budget in run.budget:
        place, subset = folder / f"{budget:g}", best["sublayers", budget]
        if subset and not place.exists():
            save(teacher, subset, place, run.max_length, about_run)
    shown = [*dict.fromkeys(filter(None, (full, *best.values())))]
    times = measured(model, shown, use)
    # what is best on some texts may be so by chance
    elsewhere = calibrate(teacher, objective, others, run.batch_size).losses(shown)
    table = write_table(pruning, times, elsewhere, is_predicted=run.price == "milliseconds")
    (folder / TABLE).write_text(table, encoding="utf-8")
    draw(pruning, run.price, folder / PICTURE)
    print(table)


def save(teacher: "Teacher", subset: "Subset", place: Path, max_length: int, run: dict[str, Any]) -> None:
    """Save a model of some sublayers, which opens as the whole one does, with the record of the `run`."""
    from sublayers.hub.folder import write_folder
    from sublayers.hub.loading import folder_of
    from sublayers.training.distill.subsets import take_subset
    from sublayers.training.distill.teacher import CLASSIFIER
    from sublayers.training.distill.trainer import save_sentence_encoder
    from sublayers.training.prune.opening import tokenizers_of

    whole: Any = teacher.model
    model: Any = take_subset(whole, subset)
    kept = " ".join(model.config.kept_sublayers)
    remark = f"These sublayers of {run['started_from']} are left: {kept}. It was not trained after that."
    pooled = teacher.pooling if teacher.is_sentence_encoder else None
    finish = pooled and partial(save_sentence_encoder, teacher=teacher, pooling=pooled, max_length=max_length)
    source = folder_of(teacher.source) if teacher.head is CLASSIFIER and not pooled else None
    with whole_folder(place) as folder:
        write_folder(folder, model, tokenizers_of(teacher), run | {"remarks": [remark]}, source, finish)
