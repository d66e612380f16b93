"""Ctrl-C in commands that start other processes."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_from_children() -> Iterator[None]:
    """Let the processes that are started here ignore Ctrl-C, which a terminal sends to all.

    This process ends them, or waits for them, and says what there is to say.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
