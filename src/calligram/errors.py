"""The one exception users see, and the wording of lookups that fail."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend: shown by the command line without a traceback."""


class NotFiniteError(UserError):
    """Numbers that cannot be compared."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Say that ``name`` is not a known ``kind``, suggest the nearest, and list what there is.

    >>> print(unknown("recipe", "vsa", ["vse", "scan"]))
    unknown recipe 'vsa'; did you mean 'vse'? known: scan, vse
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ";"
    return UserError(f"unknown {kind} '{name}'{hint} known: {', '.join(names)}")
