import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sublayers import PARBertConfig, PARBertModel, SandwichSeq2SeqConfig, SandwichSeq2SeqModel
from sublayers.configuration.alphabet import ALPHABET, Sizes, Work
from sublayers.configuration.sublayer_cost import next_works, works
from sublayers.training.metrics import calibration
from sublayers.training.metrics.roofline import DEVICES, Device, days, device_named, estimate, estimates

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "vocab_size": 99}
SIZES = Sizes(4, 12, num_attention_heads=2)
# 100 FLOP/s, 50 bytes/s, and a call of 2 seconds
SLOW = Device("a test", {"fp32": 100.0, "fp16": 200.0}, 50.0, 1e6, 2.0, False, 1.0, 1.0, 1.0)
NOTHING = {"view", "t", "transpose", "unsqueeze", "expand", "slice", "split", "permute", "alias", "_unsafe_view"}


class Kernels(TorchDispatchMode):
    """Counts the operations that compute something, and the numbers that each reads and writes beside parameters."""

    def __init__(self, model):
        super().__init__()
        self.weights = {weight.data_ptr() for weight in model.parameters()}
        self.count = self.numbers = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        if operation.__name__.split(".")[0] not in NOTHING:
            self.count += 1
            seen = [*args, *(out if isinstance(out, tuple) else [out])]
            tensors = [each for each in seen if isinstance(each, torch.Tensor)]
            self.numbers += sum(each.numel() for each in tensors if each.data_ptr() not in self.weights)
        return out


def kernels(order, **parts):
    """What a stack of these sublayers runs for 16 tokens."""
    if {*order} <= {*"sfm"}:
        model = PARBertModel(PARBertConfig(sublayer_order=order, intermediate_size=80, **SMALL, **parts)).eval()
        inputs = {}
    else:
        orders = {"encoder_sublayer_order": "sf", "decoder_sublayer_order": order}
        model = SandwichSeq2SeqModel(SandwichSeq2SeqConfig(intermediate_size=80, **orders, **SMALL)).eval()
        inputs = {"decoder_input_ids": torch.arange(16)[None], "use_cache": False}
    with torch.no_grad(), Kernels(model) as ran:
        model(input_ids=torch.arange(16)[None], **inputs)
    return ran, model.config.sizes


@pytest.mark.parametrize("letter", "sfcd")
@pytest.mark.parametrize("gated", [False, True])
def test_kernels_and_what_they_move_are_those_of_the_modules(letter, gated):
    if letter in "cd" and gated:
        pytest.skip("has no gate of this kind")
    parts = {"gated_feed_forward": gated} if letter in "sf" else {}
    base = "sf" if letter in "sf" else "scf"
    less, sizes = kernels(base, **parts)
    more, _ = kernels(base.replace("s", f"s{letter}", 1), **parts)
    assert more.count - less.count == ALPHABET[letter].kernels(sizes)
    if letter != "d":
        expected = ALPHABET[letter].traffic(sizes, Work(16, 16, 16))
        assert more.numbers - less.numbers == pytest.approx(expected, rel=0.02)


def test_what_attention_moves_where_it_computes_one_token():
    # norm of all, keys and values of all; queries, output and sum of one
    kept = 32 * 16 * (2 + 2) + 5 * 32 + 4 * (1 + 16) * 32
    sizes = Sizes(32, num_attention_heads=4)
    assert ALPHABET["s"].traffic(sizes, Work(16, 1, 16, keeps_cache=True)) == kept
    # whole states are read for scores and mix
    folded = 32 * 16 * (2 + 2) + 5 * 32 + 4 * 32
    assert ALPHABET["s"].traffic(sizes, Work(16, 1, 16)) == folded
    # the source has a length of its own
    crossed = 32 * (16 * 2 + 9 * 2) + 5 * 32 + 4 * (1 + 9) * 32
    assert ALPHABET["c"].traffic(sizes, Work(16, 1, 9)) == crossed
    with_memory = 32 * (16 * 2 + 36 * 2) + 5 * 32 + 4 * (1 + 36) * 32 + 12 * 4 * 16 * 36
    assert ALPHABET["s"].traffic(sizes._replace(memory_length=20), Work(16, 1, 16)) == with_memory


def test_a_sublayer_takes_its_arithmetic_or_its_weights_and_what_it_moves_and_its_calls():
    # one text of 6 tokens, a feed-forward sublayer of 4 and 12
    weights = 2 * 4 * 12 + 12 + 4 + 2 * 4
    moved = 6 * (7 * 4 + 4 * 12)
    arithmetic, reading, moving = 2 * 2 * 6 * 4 * 12 / 100, weights * 4 / 50, moved * 4 / 50
    assert arithmetic > reading
    found = estimate(works("f", SIZES, 6, 6), SIZES, SLOW, "fp32", 1)
    assert found.ms == pytest.approx(1e3 * (arithmetic + moving + 5 * 2.0))
    assert found.bound == "memory"
    # with fewer tokens, weights take longer than arithmetic; half of the bytes, and a queue that hides calls
    queued = SLOW._replace(has_queue=True, launch=0.1)
    found = estimate(works("f", SIZES, 1, 1), SIZES, queued, "fp16", 1)
    assert found.ms == pytest.approx(1e3 * (reading + moving / 6) / 2)
    # or is hidden by them
    found = estimate(works("f", SIZES, 1, 1), SIZES, queued._replace(launch=9.0), "fp16", 1)
    assert found == (pytest.approx(5 * 9e3), "launches")
    assert estimate(works("f", SIZES, 5, 5), SIZES, SLOW._replace(bandwidth=1e9), "fp32", 9).bound == "arithmetic"


def test_shares_of_the_peaks():
    works_of_s = [*works("s", SIZES, 6, 6)]
    free = SLOW._replace(bandwidth=math.inf, launch=0.0)
    maps, scores = 2 * 4 * 6 * 4 * 4, 2 * 2 * 6 * 6 * 4
    for products, share in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.25)):
        found = estimate(works_of_s, SIZES, free._replace(products=products, scores=share), "fp32", 3)
        assert found.ms == pytest.approx(1e3 * 3 * (maps / products + scores / share) / 100)
    reads = [*works("s", SIZES, 1, 1, keeps_cache=True)]
    slow = estimate(reads, SIZES, SLOW._replace(copies=0.5, launch=0.0, peaks={"fp32": math.inf}), "fp32", 1)
    fast = estimate(reads, SIZES, SLOW._replace(copies=1.0, launch=0.0, peaks={"fp32": math.inf}), "fp32", 1)
    assert slow.ms == pytest.approx(2 * fast.ms)


def test_a_step_of_training_is_three_passes_and_an_update():
    doing = [*works("sf", SIZES, 5, 5, keeps_cache=True)]
    once, step = (estimate(doing, SIZES, SLOW, "fp32", 2, trains) for trains in (False, True))
    weights = sum(ALPHABET[letter].parameters(SIZES) + 8 for letter in "sf")
    assert step.ms == pytest.approx(3 * once.ms + 1e3 * weights * 7 * 4 / 50)


def test_what_a_device_cannot_hold_is_too_large():
    weights = ALPHABET["f"].parameters(SIZES) + 8
    doing, tight = [*works("f", SIZES, 5, 5)], SLOW._replace(memory=4 * weights)
    assert estimate(doing, SIZES, tight, "fp32", 1).bound != "too large"
    assert estimate(doing, SIZES, tight._replace(memory=4 * weights - 1), "fp32", 1).bound == "too large"
    assert estimate(doing, SIZES, tight, "fp32", 1, trains=True).bound == "too large"
    assert estimate(next_works("f", SIZES, 5), SIZES, tight, "fp32", 99).bound != "too large"
    # two rows of five keys and values of four numbers
    tight = SLOW._replace(memory=4 * (ALPHABET["s"].parameters(SIZES) + 8 + 2 * 2 * 5 * 4))
    assert estimate(next_works("s", SIZES, 5), SIZES, tight, "fp32", 2).bound != "too large"
    assert estimate(next_works("s", SIZES, 5), SIZES, tight, "fp32", 3).bound == "too large"


def test_the_next_token_reads_the_cache():
    free = SLOW._replace(peaks={"fp32": math.inf}, launch=0.0)

    def ms(order, length, **sizes):
        return estimate(next_works(order, SIZES._replace(**sizes), length, 7), SIZES, free, "fp32", 3).ms

    # each token more has a key and a value of four numbers in each of three rows: read, written and read
    per_token = 1e3 * 3 * 2 * 4 * 4 * 3 / 50
    assert ms("s", 9) - ms("s", 5) == pytest.approx(4 * per_token)
    assert ms("f", 9) == ms("f", 5)
    # the source has 7 tokens, however many are generated
    assert ms("c", 9) == ms("c", 5)
    longer = estimate(next_works("c", SIZES, 9, 8), SIZES, free, "fp32", 3).ms
    assert longer - ms("c", 9) == pytest.approx(per_token / 3)
    # a window of four shows three tokens before the next
    assert ms("w", 9, attention_window=4) - ms("w", 2, attention_window=4) == pytest.approx(per_token)
    # all keys are multiplied
    [(row, work)] = next_works("s", SIZES, 9)
    assert row.multiply_adds(SIZES, work) == 4 * 4 * 4 + 2 * 10 * 4
    [(row, work)] = next_works("c", SIZES, 9, 7)
    assert row.multiply_adds(SIZES, work) == 2 * 4 * 4 + 2 * 7 * 4


def test_everything_that_is_estimated():
    found = estimates("sf", SIZES, SLOW, "fp32", 1, 20)
    assert [*found] == [
        "every",
        "15 %",
        "one",
        "prompt",
        "next token",
        *(f"training, {n}" for n in ("every", "15 %", "one")),
    ]
    assert found["every"].ms > found["15 %"].ms > found["one"].ms
    assert found["prompt"] == estimate(works("sf", SIZES, 20, 1, keeps_cache=True), SIZES, SLOW, "fp32", 1)
    assert "next token" not in estimates("sf", SIZES._replace(memory_length=5), SLOW, "fp32", 1, 20)
    mean = estimates("fsf", SIZES, SLOW, "fp32", 1, 20, takes_mean=True)
    assert mean["one"].ms > estimates("fsf", SIZES, SLOW, "fp32", 1, 20)["one"].ms


def test_days_of_a_training():
    # 10 tokens of 3 x 8 FLOP at 240 FLOP/s take a second
    assert days(10, 8, 240) == pytest.approx(1 / 86_400)


def test_devices():
    for device in DEVICES.values():
        assert device.source
        assert 1e11 < device.bandwidth < 1e13
    assert device_named("a100").peaks["fp16"] == 312e12
    with pytest.raises(ValueError, match="'b9000' is no device of the table; choose one of here, v100"):
        device_named("b9000")


def fake_timing(monkeypatch, machine, threads_stop=1.0):
    """Let this machine be another one."""

    def milliseconds(config, orders, length, reads, rows, seconds):
        sizes = config.sizes
        return {
            order: {
                "all": threads_stop**length
                * estimate(works(order, sizes, length, length), sizes, machine, "fp32", 1).ms
            }
            for order in orders
        }

    def time_in_turn(name, calls, repeats, device, seconds):
        # numbers of 32 bits are read, read where they will be written, and written
        return {key: [3e3 * 4 * calibration.COPIED / machine.bandwidth] for key in calls}

    monkeypatch.setattr(calibration, "milliseconds", milliseconds)
    monkeypatch.setattr(calibration, "time_in_turn", time_in_turn)


def test_calibration_finds_what_a_machine_is_like(monkeypatch):
    machine = Device("made up", {"fp32": 4e11}, 6e10, math.inf, 2e-5, False, 1.0, 0.4, 0.3)
    fake_timing(monkeypatch, machine)
    found = calibration.calibrate()
    assert found.peaks["fp32"] == pytest.approx(4e11, rel=0.01)
    assert found[2:6] == (pytest.approx(6e10), math.inf, pytest.approx(2e-5, rel=0.01), False)
    assert found[6:] == (1.0, pytest.approx(0.4, rel=0.03), pytest.approx(0.3, rel=0.01))


def test_calibration_tells_when_it_was_disturbed(monkeypatch):
    fake_timing(monkeypatch, Device("made up", {"fp32": 4e11}, 6e10, math.inf, 2e-5, False, 1.0, 0.4, 0.3), 0.99)
    with pytest.raises(OSError, match="times of this machine changed while it was measured; run it again"):
        calibration.calibrate()
