"""`sublayers study seq2seq`: train several encoder-decoders alike, and compare what they write."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sublayers.configuration.order import interleaved, macaron, sandwich
from sublayers.hub.model_card import RUN
from sublayers.training.flags import expand_settings_file, positive
from sublayers.training.lab.runs import as_flags, read_results, run_once
from sublayers.training.lab.studies.curves import LABELS, draw_curves, read_losses
from sublayers.training.lab.studies.skeleton import Study, scores
from sublayers.training.results import Row
from sublayers.training.trials import add_flags

# figures of a run that are compared: their heads, factors and digits
SHOWN_SCORES = {
    "eval_loss": (LABELS["eval_loss"], 1, 2),
    "eval_bleu": ("validation BLEU", 1, 2),
    "test_bleu": ("test BLEU", 1, 2),
    "train_runtime": ("training (minutes)", 1 / 60, 1),
}


class Studied(NamedTuple):
    """A model of the study: its family, its flags of `sublayers seq2seq`, and its share of the feed-forward width."""

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
    folder_help = "what is finished in it is not run again"
    parser.add_argument("--output_dir", type=Path, default=Path("runs/study-seq2seq"), help=folder_help)
    add_flags(parser)
    # fields of a recipe that the models decide here
    parser.add_argument("--encoder_sublayer_order", help=argparse.SUPPRESS)
    parser.add_argument("--decoder_sublayer_order", help=argparse.SUPPRESS)
    args, flags = parser.parse_known_args(expand_settings_file(argv, "seq2seq"))
    models = studied(args.layers)
    if unknown := sorted({*args.models} - models.keys()):
        raise ValueError(f"unknown model {unknown[0]!r}; choose from {', '.join(models)}")
    settings = {"flags": flags, "layers": args.layers, "intermediate_size": args.intermediate_size}
    study = Study(["seq2seq", *argv], args, settings, "minimize")
    tasks = [{"model": name, "seed": seed} for seed in args.seeds for name in args.models]
    study.run(partial(train, folder=study.folder, **settings), tasks)
    runs = study.by_model([*models])
    found = {
        name: next(iter(by_seed.values()))["about"] | {"runs": {seed: run["found"] for seed, run in by_seed.items()}}
        for name, by_seed in runs.items()
    }
    data = [*dict.fromkeys(name for run in study.found() for name in run["data"])]
    study.report([row_of(name, model) for name, model in found.items()], data)
    firsts = {name: next(iter(model["runs"].values()))["curves"] for name, model in found.items()}
    draw_curves(firsts, {"eval_loss": LABELS["eval_loss"]}, study.folder / "learning_curves.svg")
    study.end("the figures and the learning curves are in")
    return found


def train(
    model: str, seed: int, flags: list[str], layers: int, intermediate_size: int, folder: Path
) -> tuple[float, dict[str, Any]]:
    """Train a model with a seed, see the flags of the study.

    Returns:
        The validation loss, and what it is `about`, what was `found`, and the names of the `data`.
    """
    # this import takes seconds, for which --help does not wait
    from transformers import AutoModelForSeq2SeqLM

    chosen, folder = studied(layers)[model], folder / f"{model}-{seed}"
    own = {"model_type": chosen.model_type, **chosen.flags, "seed": seed}
    own["intermediate_size"] = round(intermediate_size * chosen.width)
    run_once(folder, f"{model}, seed {seed}", ["seq2seq", *flags, *as_flags(own)])
    trained = AutoModelForSeq2SeqLM.from_pretrained(folder)
    encoder, decoder = (" ".join(map(str, orders)) for orders in trained.config.stack_orders)
    about = {"encoder": encoder, "decoder": decoder, "parameters": trained.num_parameters()}
    found = read_results(folder / "all_results.json") | {"curves": read_losses(folder)}
    data = [part["name"] for part in read_results(folder / RUN)["data"]]
    return found["eval_loss"], {"about": about, "found": found, "data": data}


def row_of(name: str, model: dict[str, Any]) -> Row:
    """Make a row of figures for a model: its orders, scores, and minutes of training."""
    row = {"model": name, "encoder order": model["encoder"], "decoder order": model["decoder"]}
    row["parameters"] = f"{model['parameters']}"
    return row | scores([*model["runs"].values()], SHOWN_SCORES) | {"seeds": ", ".join(model["runs"])}
