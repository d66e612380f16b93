"""The encoder-decoders that a study compares: the Transformer, and what others made of it with equal parameters."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sublayers.configuration.order import interleaved, macaron, sandwich
from sublayers.hub.model_card import RUN
from sublayers.training.flags import as_flags
from sublayers.training.lab.runs import read_results, run_once
from sublayers.training.lab.studies.curves import LABELS, read_losses

if TYPE_CHECKING:
    from sublayers.training.lab.studies.seq2seq import StudySeq2SeqArguments

# figures of a run that are compared: their heads, factors and digits
SCORES = {
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


def train(model: str, seed: int, args: "StudySeq2SeqArguments") -> dict[str, Any]:
    """Train a model.

    Returns:
        Its orders, `encoder` and `decoder`, and `parameters`, its `metrics` and `curves`, and the names of the `data`.
    """
    # this import takes seconds, for which --help does not wait
    from transformers import AutoModelForSeq2SeqLM

    chosen, folder = studied(args.layers)[model], Path(args.output_dir, f"{model}-{seed}")
    own = {"model_type": chosen.model_type, **chosen.flags, "seed": seed}
    own["intermediate_size"] = round(args.intermediate_size * chosen.width)
    metrics = run_once(folder, f"{model}, seed {seed}", ["seq2seq", *args.flags, *as_flags(own)])
    trained = AutoModelForSeq2SeqLM.from_pretrained(folder)
    encoder, decoder = (" ".join(map(str, orders)) for orders in trained.config.stack_orders)
    found = {"encoder": encoder, "decoder": decoder, "parameters": trained.num_parameters(), "metrics": metrics}
    data = [part["name"] for part in read_results(folder / RUN)["data"]]
    return {**found, "curves": read_losses(folder), "data": data}
