"""A run of a tiny matcher, and a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest

SMALL = [
    flag
    for change in (
        "batch=6", "dim=8", "image.size=16", "image.channels=4", "text.word_dim=6", "text.hidden=8", "text.min_count=1",
    )
    for flag in ("--set", change)
]  # fmt: skip


@pytest.fixture(scope="session")
def small() -> list[str]:
    """Options that make preset vse tiny."""
    return SMALL


@pytest.fixture(scope="session")
def trained(calligram, tiny, tmp_path_factory):
    """A run that the verb trained, and what it printed."""
    out = tmp_path_factory.mktemp("trained") / "run"
    done = calligram("train", "vse", tiny.folder, "--out", out, "--set", "epochs=2", *SMALL)
    assert done.returncode == 0, done.stderr
    return out, done


def _run(script: str, *arguments: object, **environment: str) -> tuple[str, str]:
    """What a process writes into a pipe as its output, and onto a terminal as its errors."""
    terminal, inside = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=inside,
        text=True,
        env={**kept, "TERM": "xterm", "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", **environment},
    ) as process:
        os.close(inside)
        seen = b""
        try:
            while part := os.read(terminal, 4096):
                seen += part
        except OSError:  # the end of the output, once the other side is closed
            pass
        os.close(terminal)
        assert process.stdout is not None
        return process.stdout.read(), seen.decode()


@pytest.fixture(scope="session")
def on_terminal() -> Callable[..., tuple[str, str]]:
    """Runs a script with arguments, its errors on a terminal; gives what went to its output and onto the terminal."""
    return _run
