"""The exception that users see, and the wording of messages for unknown names."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable


class UserError(Exception):
    """An error that the user can correct; the command line shows its message without a traceback."""


class NotFiniteError(UserError):
    """Scores or vectors with NaN or infinite values, which cannot be ranked."""


def command(*words: object) -> str:
    """Return a command to suggest in a message, in double quotes and with arguments quoted for a shell.

    >>> print(command("calligram", "scenes", "my pictures"))
    "calligram scenes 'my pictures'"
    """
    return f'"{shlex.join(str(word) for word in words)}"'


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for an unknown name: it suggests the most similar known name and lists all of them.

    >>> print(unknown("preset", "vsa", ["vse", "scan"]))
    unknown preset 'vsa'; did you mean 'vse'? known: scan, vse
    >>> print(unknown("row", "CNN", ["GRU, stage I", "GRU"]))
    unknown row 'CNN'; known: GRU, 'GRU, stage I'
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ";"
    listed = ", ".join(f"'{name}'" if ", " in name else name for name in names)
    return UserError(f"unknown {kind} '{name}'{hint} known: {listed}")
