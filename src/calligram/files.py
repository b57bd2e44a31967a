"""One writer at a time: a lock on a file, which the system takes back when its holder dies."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from calligram.errors import UserError

LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Hold ``folder`` for writing.

    Args:
        folder: is made when it is not there.
        what: what the folder is, for the error.

    Raises:
        UserError: when another process writes to it.
    """
    with held(folder) as free:
        if not free:
            who = (folder / LOCK).read_text(encoding="utf-8").strip()
            raise UserError(f"{what} {folder} is being written to by {who or 'another process'}; wait until it is done")
        yield


@contextlib.contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Try to hold ``folder``; gives whether that succeeded."""
    import fcntl  # not there on Windows, which cannot keep a library

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield True
