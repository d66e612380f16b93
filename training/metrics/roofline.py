"""What an order takes on devices that are not here: a roofline of each sublayer (Williams et al., 2009)."""

from collections.abc import Iterable
from typing import NamedTuple

from sublayers.configuration.letters.letter import Letter, Sizes, Work
from sublayers.configuration.sublayer_cost import next_works, read_positions, works

# how many bytes a number has. The two kinds of 16 bits are as fast, and called fp16
BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "int8": 1}
# the least that large products and copies reach of a peak. Trainings as a whole reach 0.59 of an A100's FLOP/s:
# https://github.com/mosaicml/llm-foundry/tree/main/scripts/train/benchmarking (3b, 512 tokens, 8 A100 40GB)
PRODUCTS, COPIES = 0.6, 0.8
# what trainings of small models reach of the peak: those of 125 to 760 million parameters there 0.39 to 0.54 on A100s,
# and 0.34 to 0.40 on H100s
MFU = 0.4
# of one kernel, in PyTorch without compilation or graphs: the 16 x 25 kernels of Transformer-XL base take 15.38 ms for
# a text (FP16, pure Python, A100) in
# https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch/LanguageModeling/Transformer-XL
LAUNCH = 15.38e-3 / (16 * 25)
# numbers of 32 bits that a step of a fused AdamW reads and writes for each parameter: weight, gradient, two moments
OPTIMIZER = 7
# and bytes that it keeps
KEPT = 16
# how often cached keys and values are moved for a token: transformers' DynamicCache joins them with the new ones, which
# reads and writes all, and attention reads them
MOVED = {"self": 3, "cross": 1, None: 0}


class Device(NamedTuple):
    """What a device can do at best, as its vendor says.

    Attributes:
        source: who says so.
        peaks: FLOP/s of dense products, by the type of their numbers.
        bandwidth: bytes that its memory reads and writes in a second.
        memory: bytes.
        launch: seconds for which each kernel occupies the processor that calls it.
        has_queue: whether kernels wait in a queue, so that the device works while the next ones are called.
        products: the share of the peak that products reach.
        scores: that which products of tokens with tokens reach.
        copies: the share of the bandwidth that is reached.
    """

    source: str
    peaks: dict[str, float]
    bandwidth: float
    memory: float
    launch: float = LAUNCH
    has_queue: bool = True
    products: float = PRODUCTS
    scores: float = PRODUCTS
    copies: float = COPIES


def _peaks(**teraflops: float) -> dict[str, float]:
    return {name: value * 1e12 for name, value in teraflops.items()}


_AMPERE = _peaks(fp32=19.5, tf32=156, fp16=312, int8=624)
_HOPPER = _peaks(fp32=67, tf32=494.5, fp16=989.5, int8=1979)
# NVIDIA's sheets give many peaks for sparse matrices, which are twice as high
DEVICES = {
    "v100": Device("NVIDIA V100 data sheet, SXM2", _peaks(fp32=15.7, fp16=125), 900e9, 32e9),
    "t4": Device("NVIDIA T4 data sheet", _peaks(fp32=8.1, fp16=65, int8=130), 300e9, 16e9),
    "a100-40gb": Device("NVIDIA A100 data sheet, 40 GB", _AMPERE, 1555e9, 40e9),
    "a100": Device("NVIDIA A100 data sheet, 80 GB SXM", _AMPERE, 2039e9, 80e9),
    "l4": Device("NVIDIA L4 data sheet", _peaks(fp32=30.3, tf32=60, fp16=121, int8=242), 300e9, 24e9),
    "rtx4090": Device("NVIDIA Ada GPU architecture paper", _peaks(fp32=82.6, fp16=165, int8=660), 1008e9, 24e9),
    "h100-pcie": Device("NVIDIA H100 data sheet, PCIe", _peaks(fp32=51, tf32=378, fp16=756, int8=1513), 2000e9, 80e9),
    "h100": Device("NVIDIA H100 data sheet, SXM", _HOPPER, 3350e9, 80e9),
    "h200": Device("NVIDIA H200 data sheet, SXM", _HOPPER, 4800e9, 141e9),
    # 96 cores at 2.4 GHz with two multiply-adds of 8 numbers in a cycle, and 12 channels of 8 bytes at 4800 MHz. What a
    # kernel costs is measured on a processor of this maker
    "epyc-9654": Device("AMD EPYC 9004 data sheet", _peaks(fp32=96 * 2.4e-3 * 32), 12 * 38.4e9, 6e12, 15e-6, False),
}


class Estimate(NamedTuple):
    """Milliseconds, and what most of them are spent on: arithmetic, memory or launches.

    `too large` is what has more weights, cached tokens and moments of an optimizer than the device has memory.
    """

    ms: float
    bound: str


def device_named(name: str) -> Device:
    """Find a device, or measure this machine if it is called `here`.

    Raises:
        ValueError: there is no such device.
    """
    if name == "here":
        # torch takes seconds to import, for which other devices do not wait
        from sublayers.training.metrics.calibration import calibrate

        return calibrate()
    if name not in DEVICES:
        raise ValueError(f"{name!r} is no device of the table; choose one of here, {', '.join(DEVICES)}")
    return DEVICES[name]


def estimate(
    doing: Iterable[tuple[Letter, Work]], sizes: Sizes, device: Device, dtype: str, rows: int, trains: bool = False
) -> Estimate:
    """Add up what sublayers take.

    These are, for the products of each, the longer of arithmetic and of reading weights, keys and values; what their
    kernels read and write between them; and the calls of the kernels. The calls are hidden behind the work of a device
    that has a queue, or hide it.

    Args:
        doing: sublayers, with what each has to do for one row.
        sizes: of the model.
        device: on which they run.
        dtype: of weights and states, one of `BYTES`.
        rows: of the batch.
        trains: whether a step of training is meant: three times as much as forward, and AdamW.
    """
    peak, speed = device.peaks[dtype], device.bandwidth * device.copies
    passes = 3 if trains else 1
    spent, held = dict.fromkeys(("arithmetic", "memory", "launches"), 0.0), 0
    for letter, work in doing:
        scores = letter.scores(sizes, work)
        maps = letter.multiply_adds(sizes, work) - scores
        weights = letter.parameters(sizes) + sizes.norm_vectors * sizes.hidden_size
        cached = rows * 2 * letter.cache_width(sizes) * work.cached
        computing = 2 * passes * rows * (maps / device.products + scores / device.scores) / peak
        reading = passes * BYTES[dtype] * (weights + MOVED[letter.cache] * cached) / speed
        moving = passes * BYTES[dtype] * rows * letter.traffic(sizes, work) / speed
        calling = passes * letter.kernels(sizes) * device.launch
        is_waiting = calling > max(computing, reading) + moving
        if is_waiting or not device.has_queue:
            spent["launches"] += calling
        if not (is_waiting and device.has_queue):
            spent["arithmetic" if computing > reading else "memory"] += max(computing, reading)
            spent["memory"] += moving
        held += KEPT * weights if trains else BYTES[dtype] * (weights + cached)
        spent["memory"] += trains * OPTIMIZER * 4 * weights / device.bandwidth
    bound = max(spent, key=spent.__getitem__) if held <= device.memory else "too large"
    return Estimate(sum(spent.values()) * 1e3, bound)


def estimates(
    order: str,
    sizes: Sizes,
    device: Device,
    dtype: str,
    rows: int,
    length: int,
    source_length: int | None = None,
    takes_mean: bool = False,
) -> dict[str, Estimate]:
    """Estimate what an order takes for what `sublayers order` compares, for a next token, and for steps of training.

    The next token is generated behind `length` others. Raises what `works` raises.
    """

    def find(read: int, trains: bool = False, **how: bool) -> Estimate:
        return estimate(works(order, sizes, length, read, source_length, **how), sizes, device, dtype, rows, trains)

    reads = read_positions(length)
    found = {name: find(read, takes_mean=takes_mean and name == "one") for name, read in reads.items()}
    found["prompt"] = find(1, keeps_cache=True)
    if sizes.memory_length is None:
        found["next token"] = estimate(next_works(order, sizes, length, source_length), sizes, device, dtype, rows)
    return found | {f"training, {name}": find(read, True, keeps_cache=True) for name, read in reads.items()}


def days(tokens: float, flops_per_token: float, flops_per_second: float) -> float:
    """Days that a training on some tokens takes, with three times the FLOPs of a forward pass for each of them."""
    return tokens * 3 * flops_per_token / flops_per_second / 86_400
