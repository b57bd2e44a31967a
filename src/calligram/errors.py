"""The one exception users see, and the wording of lookups that fail."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend: shown by the command line without a traceback."""


class NotFiniteError(UserError):
    """Numbers that cannot be compared."""


def command(*words: object) -> str:
    """A command to suggest in a message, in quotes, and as a shell takes it whatever is in its names.

    >>> print(command("calligram", "scenes", "my pictures"))
    "calligram scenes 'my pictures'"
    """
    return f'"{shlex.join(str(word) for word in words)}"'


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Say that ``name`` is not a known ``kind``, suggest the nearest, and list what there is.

    >>> print(unknown("recipe", "vsa", ["vse", "scan"]))
    unknown recipe 'vsa'; did you mean 'vse'? known: scan, vse
    >>> print(unknown("row", "CNN", ["GRU, stage I", "GRU"]))
    unknown row 'CNN'; known: GRU, 'GRU, stage I'
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ";"
    listed = ", ".join(f"'{name}'" if ", " in name else name for name in names)
    return UserError(f"unknown {kind} '{name}'{hint} known: {listed}")
