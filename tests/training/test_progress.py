import io

import pytest
from tqdm.std import tqdm

from sublayers.training import cli


class File(io.StringIO):
    is_terminal = False

    def isatty(self):
        return self.is_terminal


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    for name in ("display", "clear"):
        # put back behind the test
        monkeypatch.setattr(tqdm, name, getattr(tqdm, name))
    monkeypatch.setattr("tqdm.std.time", clock := Clock())
    cli.run(["order", "sf"])
    return clock


def run(file, clock, steps, seconds, **options):
    for _ in tqdm(range(steps), "training", file=file, **options):
        clock.now += seconds
        tqdm.write("a loss", file=file)


def test_in_a_file_a_bar_is_a_line_soon_one_every_half_minute_and_one_in_the_end(clock):
    run(file := File(), clock, 100, 0.7)
    lines = [line for line in file.getvalue().splitlines() if line != "a loss"]
    assert [line.partition("|")[0] for line in lines] == [f"training: {share:3}%" for share in (4, 42, 85, 100)]
    assert "42/100 [00:30<00:40" in lines[1]
    # nothing but whole lines
    assert not {"\r", "\x1b"} & {*file.getvalue()}
    assert "" not in file.getvalue().splitlines()


@pytest.mark.parametrize("leave", [True, False])
def test_what_is_over_soon_needs_no_line(leave, clock):
    run(file := File(), clock, 100, 0.02, leave=leave, delay=1)
    assert file.getvalue() == "a loss\n" * 100


def test_bars_in_bars_have_lines_of_their_own(clock):
    file = File()
    for _ in tqdm(range(2), "outer", file=file):
        for _ in tqdm(range(4), "inner", file=file):
            clock.now += 10
    lines = [line.partition("|")[0] for line in file.getvalue().splitlines()]
    inner = [f"inner: {part}%" for part in (" 25", " 75", "100")]
    assert lines == [*inner, "outer:  50%", *inner, "outer: 100%"]


def test_on_a_terminal_a_bar_moves(clock):
    file = File()
    file.is_terminal = True
    run(file, clock, 100, 0.7)
    assert file.getvalue().count("\r") > 100
