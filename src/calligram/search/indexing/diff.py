"""What a library knows already of a source, and what became of each picture since."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from calligram.search.indexing.sources import FolderScan, PictureSource, ScannedPicture, below
from calligram.search.library.tables import Tables

Outcome = Literal["added", "changed", "moved", "copied", "touched", "returned", "problem", "forgotten", "lacking"]


class KnownItem(NamedTuple):
    """An item as it was last indexed."""

    id: str
    size: int
    mtime: int
    hash: str
    present: bool
    digest: str


class Change(NamedTuple):
    """What a row of the worker means for the library."""

    outcome: Outcome
    id: str
    like: str | None = None
    """the item whose encodings it takes over"""


class ForgottenPicture(NamedTuple):
    """A picture that must not come back as it was."""

    size: int
    mtime: int
    hash: str


@dataclass
class LibraryState:
    """Ids, contents and dates of all items, in memory for a comparison."""

    number: int
    items: dict[str, KnownItem] = field(default_factory=dict)
    """those of the source at hand by key"""
    ids: set[str] = field(default_factory=set)
    by_hash: dict[str, str] = field(default_factory=dict)
    """an item with this content, of any source"""
    problems: dict[str, tuple[int, int]] = field(default_factory=dict)
    """size and date by key"""
    forgotten: dict[str, ForgottenPicture] = field(default_factory=dict)
    """by hash of the key"""
    forgotten_hashes: set[str] = field(default_factory=set)
    missing: dict[str, list[str]] = field(default_factory=dict)
    """keys of items of the source that were not found now, by content"""
    away: set[str] = field(default_factory=set)
    """keys of items that were there and are not, but for those that were found under another name"""

    @classmethod
    def load(cls, tables: Tables, number: int) -> LibraryState:
        """Read the columns that are compared."""
        state = cls(number)
        wanted = ("id", "source", "key", "bytes", "mtime", "hash", "state", "digest")
        for batch in tables.column("items", wanted):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                id, source, key, size, mtime, digest_of_content, now, digest = row
                state.ids.add(id)
                state.by_hash.setdefault(digest_of_content, id)
                if source == number:
                    state.items[key] = KnownItem(id, size, mtime, digest_of_content, now == "present", digest)
        for bad in _rows(tables, "problems", number):
            state.problems[bad["key"]] = bad["bytes"], bad["mtime"]
        for left in _rows(tables, "forgotten", number):
            state.forgotten[left["id"]] = ForgottenPicture(left["bytes"], left["mtime"], left["hash"])
        state.forgotten_hashes = {f.hash for f in state.forgotten.values()}
        return state

    def __contains__(self, content: object) -> bool:
        """Whether a content need not be encoded: it is there, or was forgotten; grows while pictures are taken in."""
        return content in self.by_hash or content in self.forgotten_hashes

    def resolve(self, row: Mapping[str, Any]) -> Change:
        """Decide what became of a picture; each call assumes that the answer is acted upon."""
        key, content = row["key"], row.get("hash")
        known = self.items.get(key)
        if row.get("problem") is not None:
            return Change("problem", known.id if known else "")
        if content in self.forgotten_hashes and not (known and known.hash == content):
            return Change("forgotten", known.id if known else "")
        if known is not None and known.hash == content:
            return Change("touched" if known.present else "returned", known.id)
        has = row.get("vector") is not None
        like = None if has else self.by_hash.get(str(content))
        if not has and like is None:
            return Change("lacking", "")
        if known is not None:
            return Change("changed", known.id, like)
        if self.missing.get(str(content)):
            return Change("moved", self._moved(self.missing[str(content)].pop()))
        return Change("copied" if like else "added", self._new_id(key), like)

    def _moved(self, old_key: str) -> str:
        known = self.items.pop(old_key)
        self.away.discard(old_key)
        return known.id

    def _new_id(self, key: str) -> str:
        """A short name that fits into an address; another where a renamed picture has it."""
        turn = 0
        while (found := short_hash(f"{self.number}/{key}" + (f"#{turn}" if turn else ""))) in self.ids:
            turn += 1
        self.ids.add(found)
        return found


def _rows(tables: Tables, name: str, number: int) -> Iterable[dict[str, Any]]:
    names = {"problems": ("key", "bytes", "mtime"), "forgotten": ("id", "bytes", "mtime", "hash")}[name]
    for batch in tables.column(name, names, f"source = {number}"):
        yield from batch.to_pylist()


def short_hash(text: str) -> str:
    """Sixteen characters that stand for a text."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def forgotten_key(number: int, key: str) -> str:
    """How a forgotten picture's path is remembered: not readable, but recognised."""
    return short_hash(f"forgotten {number}/{key}")


@dataclass
class ScanChanges:
    """What a look at a source found, before anything is read."""

    todo: list[ScannedPicture] = field(default_factory=list)
    """new, or different in size or date"""
    described: list[ScannedPicture] = field(default_factory=list)
    """the same pictures, of which the source now says something else"""
    counts: Counter[str] = field(default_factory=Counter)


def compare(scan: FolderScan, state: LibraryState, source: PictureSource) -> ScanChanges:
    """Sort the entries of a scan by what is known of them."""
    changes, found = ScanChanges(), set[str]()
    for entry in scan.entries:
        found.add(entry.key)
        known, stamp = state.items.get(entry.key), (entry.size, entry.mtime)
        if known is not None and known.present and (known.size, known.mtime) == stamp:
            changes.counts["unchanged"] += 1
            if known.digest != source.about(entry).digest:
                changes.described.append(entry)
        elif state.problems.get(entry.key) == stamp:
            changes.counts["still bad"] += 1
        elif _is_forgotten(entry, state):
            changes.counts["forgotten"] += 1
        else:
            changes.todo.append(entry)
    for key, known in state.items.items():
        if key not in found and not below(scan.unread, key):
            state.missing.setdefault(known.hash, []).append(key)
            if known.present:
                state.away.add(key)
    return changes


def _is_forgotten(entry: ScannedPicture, state: LibraryState) -> bool:
    if not state.forgotten:
        return False
    found = state.forgotten.get(forgotten_key(state.number, entry.key))
    return found is not None and (found.size, found.mtime) == (entry.size, entry.mtime)
