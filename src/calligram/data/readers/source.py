"""What every reader is given, and what it must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from calligram.data.draft import Draft
from calligram.data.problems import Problems
from calligram.errors import UserError


@dataclass(frozen=True)
class Source:
    """Where to read from."""

    path: Path
    """the file or folder the user named"""
    images: Path | None = None
    """folder of the pictures, where the user named one"""
    scratch: Path | None = None
    """folder for arrays made while reading; removed once the collection is written"""

    @property
    def folder(self) -> Path:
        """The folder named, or the one that holds the file named."""
        return self.path if self.path.is_dir() else self.path.parent


Reader = Callable[[Source, Problems], Draft]


def first_file(folders: Iterable[Path], *names: str) -> Path | None:
    """The first of these files that exists, folder by folder."""
    return next((f / n for f in folders for n in names if (f / n).is_file()), None)


def needed_file(folders: Iterable[Path], *names: str, what: str) -> Path:
    """As ``first_file``, refusing when there is none.

    Raises:
        UserError: naming what was looked for and where.
    """
    places = list(folders)
    found = first_file(places, *names)
    if found is None:
        raise UserError(f"no {what} in {', '.join(map(str, places))}; expected {' or '.join(names)}")
    return found
