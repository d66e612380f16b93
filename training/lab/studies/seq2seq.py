"""`sublayers study seq2seq`: train several encoder-decoders alike, and compare what they write."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from optuna import Trial
from rich.console import Console

from sublayers.configuration.sublayer_order import interleaved, macaron, sandwich
from sublayers.hub.model_card import RUN
from sublayers.training.flags import expand_settings_file, positive
from sublayers.training.lab.runs import as_flags, read_results, run_once
from sublayers.training.lab.studies.curves import LABELS, draw_curves, read_losses
from sublayers.training.results import Row, provenance, report, score
from sublayers.training.trials import TASK, add_flags, check_done, open_study, results, run_trials

# figures of a run that are compared
SHOWN_SCORES = {
    "eval_loss": LABELS["eval_loss"],
    "eval_bleu": "validation BLEU",
    "test_bleu": "test BLEU",
}


class Studied(NamedTuple):
    """A model of the study: its family, what `sublayers seq2seq` is told, and its share of the feed-forward width."""

    model_type: str
    flags: dict[str, Any]
    width: float = 1.0


def studied(n: int) -> dict[str, Studied]:
    """All that can be compared: the Transformer of `n` layers, and what others made of it with equal parameters.

    That are Macaron, a sandwich in the encoder or the decoder, IOT with the paper's two and four decoder orders, its
    regularization studies (section 5.4), and convolutions in the place of self-attention, alone and in IOT (5.3).
    """

    def fixed(family: str, encoder: str, decoder: str, width: float = 1.0) -> Studied:
        orders = {"encoder_sublayer_order": encoder, "decoder_sublayer_order": decoder}
        return Studied(f"{family}_seq2seq", orders, width)

    def chosen(encoder: str, *decoders: str, **options: Any) -> Studied:
        orders = {"encoder_orders": [encoder], "decoder_orders": decoders}
        blocks = {"num_encoder_blocks": n, "num_decoder_blocks": n}
        return Studied("iot_seq2seq", orders | blocks | options)

    encoder, decoder = interleaved(n), interleaved(n, decoder=True)
    four = ("scf", "fsc", "csf", "fcs")
    return {
        "transformer": fixed("sandwich", encoder, decoder),
        "macaron": fixed("macaron", macaron(n), macaron(n, decoder=True), 0.5),
        "sandwich_encoder": fixed("sandwich", sandwich(n, n // 2), decoder),
        "sandwich_decoder": fixed("sandwich", encoder, sandwich(n, n // 2, decoder=True)),
        "iot_2": chosen("sf", "csf", "fcs"),
        "iot_4": chosen("sf", *four),
        "equal_orders_4": chosen("sf", *four, predict_order=False),
        "layerdrop": chosen("sf", "scf", layerdrop=0.2),
        "iot_4_layerdrop": chosen("sf", *four, layerdrop=0.2),
        "dynamic_conv": fixed("sandwich", f"(df){n}", f"(dcf){n}"),
        "light_conv": fixed("sandwich", f"(lf){n}", f"(lcf){n}"),
        "iot_4_dynamic_conv": chosen("df", *(order.replace("s", "d") for order in four)),
    }


# what is trained unless --models says otherwise
DEFAULT = ("transformer", "macaron", "sandwich_encoder", "sandwich_decoder")


def main(argv: list[str]) -> dict[str, dict[str, Any]]:
    """Run every model that is not finished, and report on all that are.

    `results.csv` and a picture of the learning curves are left in the output folder, every number in those of the runs.

    Args:
        argv: flags of the study and, for all runs alike, of `sublayers seq2seq`, after an optional recipe of it.

    Returns:
        For each finished model its orders and parameters, and the metrics of each run by seed.

    Raises:
        ValueError: bad flags, an unknown model, or what `sublayers seq2seq` raises.
    """
    parser = argparse.ArgumentParser(prog="sublayers study seq2seq", description=__doc__, allow_abbrev=False)
    models_help = f"of {', '.join(studied(2))}; default: the first 4"
    parser.add_argument("--models", nargs="+", default=DEFAULT, help=models_help)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run each")
    parser.add_argument("--layers", type=positive, default=3, help="of the encoder, and as many of the decoder")
    parser.add_argument("--intermediate_size", type=positive, default=1024, help="of the Transformer")
    parser.add_argument("--output_dir", type=Path, help="what is finished in it is not run again")
    add_flags(parser)
    # fields of a recipe that the models decide here
    parser.add_argument("--encoder_sublayer_order", help=argparse.SUPPRESS)
    parser.add_argument("--decoder_sublayer_order", help=argparse.SUPPRESS)
    args, flags = parser.parse_known_args(expand_settings_file(argv, "seq2seq"))
    models, folder = studied(args.layers), args.output_dir or Path("runs/study-seq2seq")
    if unknown := sorted({*args.models} - models.keys()):
        raise ValueError(f"unknown model {unknown[0]!r}; choose from {', '.join(models)}")
    told = {"flags": flags, "layers": args.layers, "intermediate_size": args.intermediate_size}
    study = open_study("study", folder, told, args.storage)
    tasks = [{"model": name, "seed": seed} for seed in args.seeds for name in args.models]
    train = Train(flags, args.layers, args.intermediate_size, folder)
    faults = run_trials(study, train, folder, tasks, jobs=args.jobs)
    found: dict[str, dict[str, Any]] = {}
    for name in models:
        for trial in sorted(results(study), key=lambda trial: trial.user_attrs[TASK]["seed"]):
            if trial.user_attrs[TASK]["model"] == name:
                about = found.setdefault(name, trial.user_attrs["about"] | {"runs": {}})
                about["runs"][f"{trial.user_attrs[TASK]['seed']}"] = trial.user_attrs["found"]
    data = [*dict.fromkeys(name for trial in results(study) for name in trial.user_attrs["data"])]
    report(rows_of(found), folder, provenance(["study", "seq2seq", *argv], data))
    firsts = {name: next(iter(model["runs"].values()))["curves"] for name, model in found.items()}
    draw_curves(firsts, {"eval_loss": LABELS["eval_loss"]}, folder / "learning_curves.svg")
    Console().print(f"the figures and the learning curves are in {folder}")
    check_done(faults)
    return found


@dataclass(frozen=True)
class Train:
    """Trains the model of a trial with its seed; the value is the validation loss.

    Attributes:
        flags: of `sublayers seq2seq`, for all runs alike.
        layers: of the encoder, and as many of the decoder.
        intermediate_size: of the Transformer.
        folder: of the study.
    """

    flags: list[str]
    layers: int
    intermediate_size: int
    folder: Path

    def __call__(self, trial: Trial) -> float:
        """Train, and keep what is reported as attributes."""
        # this import takes seconds, for which --help does not wait
        from transformers import AutoModelForSeq2SeqLM

        name, seed = trial.user_attrs[TASK].values()
        model, folder = studied(self.layers)[name], self.folder / f"{name}-{seed}"
        own = {"model_type": model.model_type, **model.flags, "seed": seed}
        own["intermediate_size"] = round(self.intermediate_size * model.width)
        run_once(folder, f"{name}, seed {seed}", ["seq2seq", *self.flags, *as_flags(own)])
        trained = AutoModelForSeq2SeqLM.from_pretrained(folder)
        encoder, decoder = map(" ".join, trained.config.stack_orders)
        about = {"encoder": encoder, "decoder": decoder, "parameters": trained.num_parameters()}
        found = read_results(folder / "all_results.json") | {"curves": read_losses(folder)}
        data = [part["name"] for part in read_results(folder / RUN)["data"]]
        for key, value in {"about": about, "found": found, "data": data}.items():
            trial.set_user_attr(key, value)
        return found["eval_loss"]


def rows_of(found: dict[str, dict[str, Any]]) -> list[Row]:
    """Make a row of figures for each model: its orders, scores, and minutes of training."""
    rows = []
    for name, model in found.items():
        runs = [*model["runs"].values()]
        row = {"model": name, "encoder order": model["encoder"], "decoder order": model["decoder"]}
        row["parameters"] = f"{model['parameters']}"
        for metric, head in SHOWN_SCORES.items():
            if all(metric in run for run in runs):
                row |= score(head, [run[metric] for run in runs], 2)
        row |= score("training (minutes)", [run["train_runtime"] / 60 for run in runs])
        rows.append(row | {"seeds": ", ".join(model["runs"])})
    return rows
