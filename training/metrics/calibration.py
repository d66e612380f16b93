"""What this machine reaches, measured in a few seconds."""

from statistics import median

import torch

from sublayers.configuration.alphabet import ALPHABET, Work
from sublayers.configuration.configuration_par_bert import PARBertConfig
from sublayers.training.metrics.order_times import milliseconds
from sublayers.training.metrics.roofline import Device
from sublayers.training.metrics.timing import time_in_turn

# sublayers of BERT's sizes that no cache holds, tokens of a text, and seconds for each measurement
FEW, MANY, SHORT, LONG, SECONDS = 4, 16, 256, 512, 1.0
# numbers that are copied
COPIED = 2**25


def calibrate() -> Device:
    """Measure the processor in 32 bits, on sublayers of BERT's sizes; a `Device` whose peaks are what they reach.

    A kernel costs what it takes if there is next to nothing to compute. Feed-forward sublayers give the FLOP/s of maps
    and, at one token, how fast weights are read; self-attention on longer texts gives the FLOP/s of scores.

    Raises:
        OSError: what else runs here disturbs it.
    """
    config = PARBertConfig(sublayer_order="s")
    tiny = PARBertConfig(sublayer_order="s", hidden_size=8, intermediate_size=8, num_attention_heads=2)
    sizes, letters = config.sizes, {letter: ALPHABET[letter] for letter in "sf"}

    def seconds(config: PARBertConfig, order: str, length: int) -> float:
        return milliseconds(config, [order], length, ["all"], 1, SECONDS)[order]["all"] / 1e3

    launch = seconds(tiny, "sf" * FEW, 1) / (FEW * sum(row.kernels(sizes) for row in letters.values()))

    def one(order: str, length: int) -> float:
        return seconds(config, order, length) / len(order) - letters[order[0]].kernels(sizes) * launch

    def moved(letter: str, length: int) -> float:
        return 4 * letters[letter].traffic(sizes, Work(length, length, length)) / reading

    reading = 4 * letters["f"].parameters(sizes) / one("f" * MANY, 1)
    work = Work(SHORT, SHORT, SHORT)
    peak = 2 * letters["f"].multiply_adds(sizes, work) / (one("f" * FEW, SHORT) - moved("f", SHORT))
    work = Work(LONG, LONG, LONG)
    scores = letters["s"].scores(sizes, work)
    maps = letters["s"].multiply_adds(sizes, work) - scores
    scoring = one("s" * FEW, LONG) - 2 * maps / peak - moved("s", LONG)
    if min(launch, reading, peak, scoring) <= 0:
        raise OSError("times of this machine changed while it was measured; run it again when it is idle")
    old, new = torch.ones(COPIED), torch.empty(COPIED)
    times = time_in_turn("copying", {"copy": lambda: new.copy_(old)}, 9, old.device, SECONDS)
    # a processor reads what it writes
    bandwidth = 3 * 4 * COPIED / (median(times["copy"]) / 1e3)
    return Device(
        "measured here",
        {"fp32": peak},
        bandwidth,
        memory=float("inf"),
        launch=launch,
        has_queue=False,
        products=1.0,
        scores=2 * scores / scoring / peak,
        copies=reading / bandwidth,
    )
