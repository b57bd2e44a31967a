"""The exception that users see, the wording of messages for unknown names, and errors of disks."""

from __future__ import annotations

import difflib
import errno
import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""numbers of errors of a disk that is full, read-only or broken"""
MEMORY_ERROR = re.compile(
    r"(?i)bad_alloc|(can't|cannot|failed to|unable to) (allocate|start new thread|map)|out of memory|malloc of size|"
    r"memory allocation of|resource temporarily unavailable|not enough memory"
)
"""in the text of errors of libraries in C++ and Rust that got no memory, or no memory for a thread"""


FOLDER_FILES = {"collection": "collection.json", "run": "run.json", "library": "library.json"}
"""the file by which a folder of each kind is known"""


STAGING = "staging"
"""folder in a library of pictures that are encoded and not in the tables yet"""


class UserError(Exception):
    """An error that the user can correct; the command line shows its message without a traceback."""


class NotFiniteError(UserError):
    """Scores or vectors with NaN or infinite values, which cannot be ranked."""


class UnknownClassError(UserError):
    """A file names a class from outside the package that this process has not imported."""


def command(*words: object) -> str:
    """Return a command to suggest in a message, in double quotes and with arguments quoted for a shell.

    >>> print(command("calligram", "scenes", "my pictures"))
    "calligram scenes 'my pictures'"
    """
    return f'"{shlex.join(str(word) for word in words)}"'


def wrong_folder(folder: str | os.PathLike[str], wanted: str) -> UserError:
    """Return the error for a folder that is not a collection, run or library: what it is, and how to make one.

    >>> print(wrong_folder("nowhere", "run"))
    nowhere is not a run (it has no run.json); make one with "calligram train"
    """
    name = os.fspath(folder)
    found = next((kind for kind, file in FOLDER_FILES.items() if os.path.isfile(os.path.join(name, file))), "")
    if not found and any(Path(name).glob(f"{STAGING}/*/*/about.json")):
        return UserError(f'{name} holds encoded shards only; "calligram index" without --shard makes a library of them')
    if not found and os.path.isdir(name) and os.listdir(name):
        found = "pictures"
    how = {
        ("library", "run"): command("calligram", "index", name, "PICTURES", "--out", "LIBRARY"),
        ("library", "collection"): command("calligram", "index", "RUN", name, "--out", "LIBRARY"),
        ("library", "pictures"): f"{command('calligram', 'index', name)}, if these are your pictures",
        ("library", ""): command("calligram", "index", "RUN", "SOURCE", "--out", name),
        ("run", "collection"): command("calligram", "train", "vse", name, "--out", "RUN"),
        ("collection", "pictures"): command("calligram", "import", "folder", name, "COLLECTION"),
        ("collection", ""): f"{command('calligram', 'import', 'FORMAT', 'SOURCE', name)} or "
        + command("calligram", "scenes", name),
    }
    general = {"run": '"calligram train"', "collection": '"calligram import"', "library": '"calligram index"'}
    but = f" but a {found}" if found in FOLDER_FILES else ""
    todo = how.get((wanted, found), general[wanted])
    return UserError(f"{name} is not a {wanted} (it has no {FOLDER_FILES[wanted]}){but}; make one with {todo}")


def unknown(kind: str, name: str, known: Iterable[str], *, grouped: bool = False) -> UserError:
    """Return the error for an unknown name: it suggests the most similar known name and lists all of them.

    Args:
        grouped: the part of a name before a dot is a group; other groups are listed by their names only.

    >>> print(unknown("preset", "vsa", ["vse", "scan"]))
    unknown preset 'vsa'; did you mean 'vse'? known: scan, vse
    >>> print(unknown("row", "CNN", ["GRU, stage I", "GRU"]))
    unknown row 'CNN'; known: GRU, 'GRU, stage I'
    >>> print(unknown("setting", "text.wrds", ["lr", "text.words", "image.size", "image.crop"], grouped=True))
    unknown setting 'text.wrds'; did you mean 'text.words'? known: text.words
    >>> print(unknown("setting", "epochs", ["lr", "text.words", "image.size", "image.crop"], grouped=True))
    unknown setting 'epochs'; known: image.*, lr, text.*
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ";"
    if grouped:
        group, dot, _ = name.partition(".")
        own = [each for each in names if dot and each.startswith(f"{group}.")]
        names = own or sorted({f"{each.partition('.')[0]}.*" if "." in each else each for each in names})
    listed = ", ".join(f"'{name}'" if ", " in name else name for name in names)
    return UserError(f"unknown {kind} '{name}'{hint} known: {listed}")


def is_memory_error(error: BaseException) -> bool:
    """Whether an error says that there is not enough memory.

    >>> is_memory_error(RuntimeError("std::bad_alloc")), is_memory_error(ValueError("a list of 3"))
    (True, False)
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError | OSError | SystemError | ImportError) and bool(
        MEMORY_ERROR.search(str(error))
    )


def disk_error_number(error: BaseException) -> int | None:
    """The number of an error of a disk, one of ``DISK_ERRORS``; None for other errors.

    Libraries in C++ and Rust raise other classes than OSError, with the words or the number of the system in the text.

    >>> disk_error_number(RuntimeError("cannot write: No space left on device (os error 28)"))
    28
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in DISK_ERRORS else None
    text = str(error)
    if isinstance(error, OSError) and re.fullmatch(r"\d+ requested and \d+ written", text):  # by numpy
        return errno.ENOSPC
    return next((n for n in DISK_ERRORS if os.strerror(n) in text or f"(os error {n})" in text), None)
