"""Libraries in the user's data folder: made by ``calligram index FOLDER``, and found by commands without a library."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from calligram.errors import UserError, command
from calligram.files import text_hash
from calligram.search.library.manifest import MANIFEST, read_manifest


def data_folder() -> Path:
    """The folder for data of this program, by the rules of the system."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "calligram"
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_DATA_HOME"
    given = Path(os.environ.get(variable, ""))
    return (given if given.is_absolute() else Path.home() / ".local" / "share") / "calligram"


def library_of(source: Path) -> Path:
    """The folder of the library of a source for which none is named: the name of the source, and a hash of its path."""
    place = source.resolve()
    name = re.sub(r"[^\w.-]+", "-", place.name).strip(".-") or "pictures"
    return data_folder() / "libraries" / f"{name[:60]}-{text_hash(str(place), 4)}"


def default_libraries() -> list[Path]:
    """The libraries in the data folder, by name."""
    folder = data_folder() / "libraries"
    return sorted(place for place in folder.iterdir() if (place / MANIFEST).is_file()) if folder.is_dir() else []


def find_library(given: Path | None = None) -> Path:
    """The library that a command means: the given one, that of the present folder, or the only one.

    Raises:
        UserError: when there is none, or several could be meant.
    """
    if given is not None:
        return given
    known = default_libraries()
    here = [library for library in known if _holds(library, Path.cwd().resolve())]
    for found in (here, known):
        if len(found) == 1:
            return found[0]
    if not known:
        raise UserError(
            f"no library is given, and there is none in {data_folder()}; make one with "
            f"{command('calligram', 'index', 'FOLDER')}"
        )
    listed = "; ".join(f"{library} ({', '.join(_roots(library))})" for library in known)
    raise UserError(f"several libraries could be meant; give the folder of one as LIBRARY: {listed}")


def _roots(library: Path) -> list[str]:
    try:
        return [source.root for source in read_manifest(library).sources]
    except UserError:
        return ["it cannot be read"]


def _holds(library: Path, folder: Path) -> bool:
    """Whether a folder belongs to a source of a library."""
    return any(folder.is_relative_to(root) for root in _roots(library))
