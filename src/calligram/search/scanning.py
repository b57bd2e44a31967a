"""The picture files under a folder, quickly: names, sizes and dates of a hundred thousand in a second."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from calligram.data.collection import MANIFEST as COLLECTION
from calligram.data.pictures import SUFFIXES
from calligram.search.manifest import MANIFEST as LIBRARY


class Entry(NamedTuple):
    """A picture of a source as it lies there now."""

    key: str
    """what the source knows it by: its path within the folder, or its id in the collection"""
    file: str | None
    """the file that holds it, relative to the source; None where there are only features"""
    offset: int
    """where it begins within the file; -1 where it is the whole file"""
    size: int
    mtime: int
    """nanoseconds"""
    row: int = -1
    """its row in a collection"""


@dataclass
class Scan:
    """Everything that was found, and what could not be looked at."""

    entries: list[Entry] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """folders that could not be read: what was known below them is not gone for that"""
    problems: dict[str, str] = field(default_factory=dict)
    """reason by key"""


def scan_folder(root: Path) -> Scan:
    """Every picture under ``root`` in a fixed order.

    Hidden files and folders are left out, and so are libraries and collections kept there. Links are followed; a folder
    is visited once, however many ways lead to it.
    """
    found, visited = Scan(), set[tuple[int, int]]()
    waiting, links = [""], list[str]()
    while waiting or links:
        # Linked folders come last, so that a picture is known by its own path where it has one.
        folder = waiting.pop() if waiting else links.pop()
        real, linked = _visit(root, folder, found, visited)
        waiting += reversed(real)
        links += reversed(linked)
    found.entries.sort()
    return found


def _visit(root: Path, folder: str, found: Scan, visited: set[tuple[int, int]]) -> tuple[list[str], list[str]]:
    """Note the pictures of one folder; returns the folders in it, and the links to folders."""
    place = os.path.join(root, folder)
    try:
        about = os.stat(place)
        if (about.st_dev, about.st_ino) in visited:
            return [], []
        visited.add((about.st_dev, about.st_ino))
        with os.scandir(place) as inside:
            listed = sorted(inside, key=lambda entry: entry.name)
    except OSError as error:
        found.unread.append(folder)
        found.problems[_printable(folder)] = f"unreadable folder: {error.strerror}"
        return [], []
    names = {entry.name for entry in listed}
    if folder and (LIBRARY in names or COLLECTION in names):
        return [], []
    real, linked = list[str](), list[str]()
    for entry in listed:
        if entry.name.startswith("."):
            continue
        key = f"{folder}/{entry.name}" if folder else entry.name
        if entry.is_dir():
            (linked if entry.is_symlink() else real).append(key)
        elif os.path.splitext(entry.name)[1].lower() in SUFFIXES:
            _note(entry, key, found)
    return real, linked


def _note(entry: os.DirEntry[str], key: str, found: Scan) -> None:
    shown = _printable(key)
    if shown != key:
        found.problems[shown] = "the name is not valid Unicode; rename the file"
        return
    try:
        about = entry.stat()
    except OSError as error:
        found.problems[key] = str(error.strerror)
        return
    if stat.S_ISREG(about.st_mode):
        found.entries.append(Entry(key, key, -1, about.st_size, about.st_mtime_ns))


def _printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def below(folders: list[str], key: str) -> bool:
    """Whether a path lies in one of these folders."""
    return any(not folder or key.startswith(f"{folder}/") for folder in folders)


def shard_of(entries: Iterator[Entry] | list[Entry], number: int, count: int) -> list[Entry]:
    """The share of one of ``count`` workers, numbered from one; the same whoever asks and whatever else is there."""
    from zlib import crc32

    return [entry for entry in entries if crc32(entry.key.encode()) % count == number - 1]
