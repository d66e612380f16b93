"""Progress bars where there is no terminal: lines now and then."""

from typing import Any

from tqdm.std import tqdm

# seconds before the first line, so that what takes less prints none, and between two lines
FIRST, SECONDS = 3, 30


def write_lines() -> None:
    """Let every bar that is not on a terminal write a line now and then, in place of moving.

    All libraries here have their bars from tqdm. In a file a moving bar would be one line of thousands of characters.
    """
    tqdm.display, tqdm.clear = _display, _clear  # type: ignore[method-assign]


def _display(bar: Any, msg: str | None = None, pos: int | None = None, display: Any = tqdm.display) -> Any:
    if bar.fp.isatty():
        return display(bar, msg, pos)
    # tqdm adds an empty line to a bar that stays; of others it asks for an empty text in the end
    bar.leave, is_over = False, msg == ""
    elapsed = bar.format_dict["elapsed"]
    last, line = vars(bar).setdefault("line", (0, 0)), (1 + elapsed // SECONDS if elapsed >= FIRST else 0, bar.n)
    if line[0] > last[0] or (is_over and line[0] and line != last):
        bar.line = line
        print(bar, file=bar.fp, flush=True)
    return False


def _clear(bar: Any, nolock: bool = False, clear: Any = tqdm.clear) -> None:
    if bar.fp.isatty():
        clear(bar, nolock)
