"""Run a verb of ``calligram`` in this process, and say how it ended."""

from __future__ import annotations

import contextlib
import io
import logging
import signal
import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

HANG_SECONDS = 120


class Ending(NamedTuple):
    """How a verb ended."""

    code: int | str
    """the exit code, or the class and the text of an exception that would be a traceback"""
    out: str
    err: str

    @property
    def is_fine(self) -> bool:
        """Whether it ended with an answer, or with one line of error."""
        if isinstance(self.code, str) or "Traceback" in self.err or self.code not in (0, 1, 2):
            return False
        errors = [line for line in self.err.splitlines() if line.startswith("error:")]
        return self.code != 2 or len(errors) == 1 or "Usage:" in self.err


def run(*words: object) -> Ending:
    """Run a verb."""
    from calligram.cli import main, screen

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2))
    before = sys.argv, sys.stdout, sys.stderr, sys.stdin, logging.getLogger().handlers
    code: int | str = 0
    sys.argv, sys.stdout, sys.stderr, sys.stdin = ["calligram", *map(str, words)], out, err, io.StringIO()
    logging.getLogger().handlers = []
    for shown in (screen.console, screen.errors):
        shown._width, shown._color_system = 10_000, None
    try:
        with warnings.catch_warnings(), _time_limit():
            main.main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of Lance is no Exception
        code = f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        sys.argv, sys.stdout, sys.stderr, sys.stdin, logging.getLogger().handlers = before
    texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]
    return Ending(code, *texts)


class HungError(BaseException):
    """A verb did not end."""


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise HungError(f"no end after {HANG_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
