"""Checksums of stored files: noted when a file is written, compared when it is first read.

The checksum is CRC-32 (``zlib``). It finds every change of up to 32 neighbouring bits, and misses one of 4 billion
other changes. It is against broken disks and copies, not against people. It was the fastest of the standard
library: 3.8 GB a second, where BLAKE2b reached 0.8.

A JSON file holds its own checksum (``sealed``). Other files are listed in the manifest of their folder, or in
``checksums.json`` next to them. A folder without checksums is from an earlier version; it is read unchecked.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from calligram.errors import UserError

CHECKSUM_KEY = "checksum"
LIST_FILE = "checksums.json"
"""checksums of the files of a folder that has no manifest of its own"""
CHECKED_FILE = ".checked"
"""files of a folder that were checked, by size, date and inode; it may be deleted at any time"""
LISTED_NAMES = (".safetensors", "matcher.json")
"""ends of the names of files that ``files.replace_file`` lists in ``LIST_FILE``"""
BLOCK_BYTES = 1 << 20
MIN_REMEMBERED_BYTES = 32 << 20
"""checking fewer bytes takes less time than writing down that they were checked"""
MAX_CHECKED_FILES = 100_000
"""that a process remembers; a server meets new files with every commit"""
MIN_AGE_SECONDS = 0.1
"""a file that is younger may change again without another date"""

Stamp = tuple[int, int, int]
"""size, time of the last change, and inode"""
_checked: dict[tuple[str, Stamp], str] = {}
"""checksums that this process has computed"""
_lock = threading.Lock()


class DamagedFileError(UserError):
    """A file does not have the content that was written."""

    def __init__(self, file: Path, why: str, todo: str):
        super().__init__(f"{file} is damaged ({why}); {todo}")
        self.file, self.why, self.todo = file, why, todo


# JSON files that hold their own checksum.


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a JSON file with its own checksum as the last entry."""
    rest = {key: value for key, value in content.items() if key != CHECKSUM_KEY}
    return {**rest, CHECKSUM_KEY: json_checksum(rest)}


def seal_is_right(content: Mapping[str, Any]) -> bool:
    """Whether the content of a JSON file has the checksum that it names; also if it names none."""
    rest = {key: value for key, value in content.items() if key != CHECKSUM_KEY}
    return CHECKSUM_KEY not in content or content[CHECKSUM_KEY] == json_checksum(rest)


def json_checksum(content: Mapping[str, Any]) -> str:
    """The checksum of JSON content, whatever its order and its white space."""
    plain = json.loads(json.dumps(content))  # keys become strings, as in a file
    return f"{zlib.crc32(json.dumps(plain, sort_keys=True, separators=(',', ':')).encode('ascii')):08x}"


# Other files: a record is "CHECKSUM SIZE".


def file_record(file: Path) -> str:
    """The checksum and the size of a file."""
    found, size = 0, 0
    with file.open("rb", buffering=0) as stream:
        while block := stream.read(BLOCK_BYTES):
            found, size = zlib.crc32(block, found), size + len(block)
    return f"{found:08x} {size}"


def folder_records(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Records of files of a folder, by their paths within it."""
    return {name: file_record(folder / name) for name in names}


def check_files(
    folder: Path, records: Mapping[str, str | list[str]], todo: str, *, missing: bool = False, again: bool = False
) -> None:
    """Compare files with their records. Files that were checked before, and have the same date since, are not read.

    Args:
        folder: of the files.
        records: by path within the folder; several where the file was about to be replaced.
        todo: what the user can do about a damaged file.
        missing: whether a file may be missing, because whoever reads it notices.
        again: read all files, also files with an earlier check.

    Raises:
        DamagedFileError: for the first file that differs.
    """
    known = {} if again else _remembered(folder, records)
    new: dict[str, list[Any]] = {}
    for name, accepted in records.items():
        file = folder / name
        try:
            about = file.stat()
        except (FileNotFoundError, NotADirectoryError):
            if missing:
                continue
            raise DamagedFileError(file, "it is missing", todo) from None
        if not stat.S_ISREG(about.st_mode):
            raise DamagedFileError(file, "it is not a regular file", todo)
        stamp = (about.st_size, about.st_mtime_ns, about.st_ino)
        found = None if again else _checked.get((str(file), stamp), known.get(name, {}).get(stamp))
        if found is None:
            found = file_record(file)
            if time.time() - about.st_mtime > MIN_AGE_SECONDS:
                new[name] = [*stamp, found]
                if len(_checked) >= MAX_CHECKED_FILES:
                    _checked.clear()
                _checked[str(file), stamp] = found
        if found not in ([accepted] if isinstance(accepted, str) else accepted):
            raise DamagedFileError(file, "its content is not what was written", todo)
    if sum(entry[0] for entry in new.values()) >= MIN_REMEMBERED_BYTES:
        _remember(folder, new)


def _remembered(folder: Path, records: Mapping[str, Any]) -> dict[str, dict[Stamp, str]]:
    """Checksums of files that were checked before, if their size, date and inode are the same."""
    found: dict[str, dict[Stamp, str]] = {}
    for name, entry in _read_checked(folder).items():
        if name in records and isinstance(entry, list) and len(entry) == 4:
            found[name] = {(entry[0], entry[1], entry[2]): entry[3]}
    return found


def _read_checked(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / CHECKED_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and seal_is_right(content) else {}


def _remember(folder: Path, new: Mapping[str, list[Any]]) -> None:
    """Write down which files were checked; several processes may do so at a time, and the last one counts."""
    with _lock, contextlib.suppress(OSError):
        kept = {name: entry for name, entry in _read_checked(folder).items() if (folder / name).exists()}
        write_quickly(folder / CHECKED_FILE, sealed({**kept, **new}))


def write_quickly(file: Path, content: object) -> None:
    """Replace a JSON file that can be made again: it is whole, and may be lost with the power."""
    descriptor, partial = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(content, stream)
        os.replace(partial, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


# The list of a folder without a manifest.


def read_list(folder: Path) -> dict[str, list[str]]:
    """The records of ``checksums.json``; empty where there is none.

    Raises:
        DamagedFileError: when it cannot be read.
    """
    file = folder / LIST_FILE
    try:
        content = json.loads(file.read_bytes())
        records = content["files"]
        right = seal_is_right(content) and all(isinstance(name, str) for names in records.values() for name in names)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        right, records = False, {}
    if not right:
        raise DamagedFileError(file, "its checksum differs", "if the other files are right, delete it")
    return {str(name): list(accepted) for name, accepted in records.items()}


def list_content(records: Mapping[str, list[str]]) -> dict[str, Any]:
    """The content of the list of a folder."""
    return sealed({"files": dict(sorted(records.items()))})


def folder_list(folder: Path) -> dict[str, Any]:
    """The content of the list of a folder with all its files."""
    names = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and file.name != LIST_FILE]
    return list_content({name: [record] for name, record in folder_records(folder, names).items()})


def is_listed(name: str) -> bool:
    """Whether a file has a record in the list of its folder when it is replaced."""
    return name.endswith(LISTED_NAMES)


def with_record(file: Path, replacement: Path) -> dict[str, Any]:
    """The list of a folder in which ``replacement`` is about to take the place of ``file``.

    The present content stays accepted, because a process may be killed before it is replaced.
    """
    try:
        records = read_list(file.parent)
    except DamagedFileError:
        records = {}
    before = records.get(file.name, [])[:1]
    if not before and file.is_file():
        before = [file_record(file)]
    records[file.name] = list(dict.fromkeys((file_record(replacement), *before)))
    return list_content(records)


def check_listed(folder: Path, names: Iterable[str] | None, todo: str, *, again: bool = False) -> None:
    """Compare files of a folder with its list; files that it does not name are not compared.

    Args:
        folder: with or without a list.
        names: None for all that are listed.
        todo: what the user can do about a damaged file.
        again: read all files, also files with an earlier check.
    """
    records: Mapping[str, Any] = read_list(folder)
    wanted = records if names is None else {name: records[name] for name in names if name in records}
    check_files(folder, wanted, todo, again=again)


# Parts of files, for hashes of contents.


def file_parts(file: Path, name: str) -> Iterator[bytes]:
    """A name and the content of a file in blocks, for ``files.parts_hash``."""
    yield name.encode()
    with file.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            yield block


def folder_parts(folder: Path) -> Iterator[bytes]:
    """The path and the content of each file under a folder, without its checksums, for ``files.parts_hash``."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != LIST_FILE:
            yield from file_parts(file, file.relative_to(folder).as_posix())
