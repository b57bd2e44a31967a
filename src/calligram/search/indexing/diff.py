"""Decide what an indexing run does with each picture, and keep the list of pictures that it leaves out.

There are two decisions, and neither reads a picture or writes a table. ``diff`` compares a scan of the source with the
state of the library: names, sizes and dates. ``resolve`` decides about the pictures that were read after that, when the
hash of their content is known.

The list of forgotten pictures is a table of the library. All other tables can be filled again from the pictures, this
one cannot. So each commit that changes it also writes ``forgotten.json`` next to the tables. The copy is used only
where the table is damaged.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from calligram.errors import UserError
from calligram.files import replace_json, text_hash
from calligram.records import integer, list_of, read_object, record, text
from calligram.search.indexing.sources import FolderScan, ScannedPicture, below
from calligram.search.library.manifest import Manifest
from calligram.search.library.tables import SCHEMAS, Tables, old_batches

log = logging.getLogger(__name__)

COPY_FILE = "forgotten.json"
"""in the folder of a generation"""
MAX_COPIED_FORGOTTEN_ROWS = 200_000
"""about 30 MB; a longer list has no copy"""
FORGOTTEN_COLUMNS = ("id", "source", "bytes", "mtime", "hash")
_FORGOTTEN_ROW = record(
    {"id": text(), "source": integer(0), "bytes": integer(-1), "mtime": integer(-(2**63), 2**63), "hash": text()}
)
COPY_SCHEMA = record({"pictures": list_of(_FORGOTTEN_ROW)})

assert set(FORGOTTEN_COLUMNS) == set(SCHEMAS["forgotten"].names)

Action = Literal[
    "unchanged",  # same size, date and facts: do nothing
    "described",  # same size and date, other facts or captions: write its row again
    "encode",  # new, or another size or date: read it
    "still bad",  # could not be used before, and has not changed: do nothing
    "forgotten",  # removed by "calligram forget", and has not changed: do nothing
    "gone",  # an item whose file is no longer there: take it out of the search, or find it under another name
    "still gone",  # an item whose file was not there before either: find it under another name, or do nothing
    "problem",  # could not be scanned: record the reason
    "solved",  # had a problem, and is no longer there: delete the record
]
Outcome = Literal[
    "added",  # new content
    "changed",  # the file of an item has other content
    "moved",  # the content of an item whose file is gone, under another name: the item keeps its id
    "copied",  # the content of an item that is still there: a new item takes over its encodings
    "touched",  # same content, another date
    "returned",  # the file of an item that was gone
    "problem",  # could not be decoded
    "forgotten",  # content that "calligram forget" removed
    "not encoded",  # content that another run was to encode, and did not
]


class IndexedItem(NamedTuple):
    """An item as the last indexing run left it."""

    id: str
    size: int
    mtime: int
    hash: str
    """of the content"""
    present: bool
    digest: str
    """of facts and captions"""


class ForgottenPicture(NamedTuple):
    """A picture that indexing leaves out until it changes."""

    size: int
    mtime: int
    hash: str


class Change(NamedTuple):
    """What to do with a picture of the scan, or with an item or a problem that the scan does not have."""

    action: Action
    key: str
    picture: ScannedPicture | None = None
    """None where the scan does not have it"""
    item: IndexedItem | None = None
    """None where the library does not have it"""
    reason: str = ""
    """of a problem"""


class ContentChange(NamedTuple):
    """What to do with a picture whose content is known."""

    outcome: Outcome
    id: str
    """of the item; empty where there is none"""
    like: str | None = None
    """the item with the same content whose encodings it takes"""
    moved_from: str | None = None
    """the key that the item had before"""


@dataclass
class LibraryState:
    """Ids, contents and dates of all items, as ``diff`` and ``resolve`` need them."""

    number: int
    """of the source"""
    items: dict[str, IndexedItem] = field(default_factory=dict)
    """items of the source, by key"""
    ids: set[str] = field(default_factory=set)
    by_hash: dict[str, str] = field(default_factory=dict)
    """id of an item with this content, from any source"""
    problems: dict[str, tuple[int, int]] = field(default_factory=dict)
    """size and date, by key"""
    forgotten: dict[str, ForgottenPicture] = field(default_factory=dict)
    """by hash of the key"""
    forgotten_hashes: set[str] = field(default_factory=set)
    missing: dict[str, list[str]] = field(default_factory=dict)
    """keys of items that the scan does not have, by content: each may have been renamed"""
    gone: set[str] = field(default_factory=set)
    """keys of items that the scan does not have and the last run had, without those found under another name"""

    @classmethod
    def load(cls, tables: Tables, number: int) -> LibraryState:
        """Read it from the tables of a library."""
        state = cls(number)
        wanted = ("id", "source", "key", "bytes", "mtime", "hash", "state", "digest")
        for batch in tables.column("items", wanted):
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                id, source, key, size, mtime, content, presence, digest = values
                state.ids.add(id)
                state.by_hash.setdefault(content, id)
                if source == number:
                    state.items[key] = IndexedItem(id, size, mtime, content, presence == "present", digest)
        for row in _rows(tables, "problems", ("key", "bytes", "mtime"), number):
            state.problems[row["key"]] = row["bytes"], row["mtime"]
        for row in _rows(tables, "forgotten", ("id", "bytes", "mtime", "hash"), number):
            state.forgotten[row["id"]] = ForgottenPicture(row["bytes"], row["mtime"], row["hash"])
        state.forgotten_hashes = {picture.hash for picture in state.forgotten.values()}
        return state

    def __contains__(self, content: object) -> bool:
        """Whether a content need not be encoded, because an item has it or it was forgotten."""
        return content in self.by_hash or content in self.forgotten_hashes

    def set_missing(self, changes: Iterable[Change]) -> None:
        """Note the items that a scan does not have."""
        for change in changes:
            if change.item is not None and change.action in ("gone", "still gone"):
                self.missing.setdefault(change.item.hash, []).append(change.key)
                if change.action == "gone":
                    self.gone.add(change.key)

    def record(
        self,
        resolved: Iterable[tuple[Mapping[str, Any], ContentChange]],
        written: Mapping[str, Mapping[str, Any]],
        gone: Collection[str],
    ) -> None:
        """Note what was committed.

        Args:
            resolved: rows of the encoder and what was decided about them.
            written: rows of the items table, by id.
            gone: ids of items that were taken out of the search.
        """
        for row, change in resolved:
            if change.moved_from is not None:
                self.missing[self.items.pop(change.moved_from).hash].remove(change.moved_from)
                self.gone.discard(change.moved_from)
            before, now = self.items.get(row["key"]), written.get(change.id)
            if now is not None:
                if before is not None and before.hash != now["hash"] and self.by_hash.get(before.hash) == change.id:
                    del self.by_hash[before.hash]
                self.ids.add(change.id)
                self.by_hash.setdefault(now["hash"], change.id)
                stamp = now["bytes"], now["mtime"]
                self.items[row["key"]] = IndexedItem(change.id, *stamp, now["hash"], True, now["digest"])
            elif before is not None and change.id in gone:
                self.items[row["key"]] = before._replace(present=False)

    def record_gone(self) -> list[str]:
        """Note that the items in ``gone`` are not there; returns their ids."""
        ids = sorted(self.items[key].id for key in self.gone)
        for key in self.gone:
            self.items[key] = self.items[key]._replace(present=False)
        return ids


def _rows(tables: Tables, name: str, columns: Sequence[str], number: int) -> Iterable[dict[str, Any]]:
    for batch in tables.column(name, columns, f"source = {number}"):
        yield from batch.to_pylist()


def diff(scan: FolderScan, state: LibraryState) -> list[Change]:
    """What to do with each picture of a scan, then with each item and each problem that the scan does not have."""
    changes = [_change(picture, state) for picture in scan.entries]
    scanned = {picture.key for picture in scan.entries}
    for key, item in state.items.items():
        if key not in scanned and not below(scan.unread, key):
            changes.append(Change("gone" if item.present else "still gone", key, item=item))
    changes += [
        Change("problem", key, reason=reason) for key, reason in scan.problems.items() if key not in state.problems
    ]
    changes += [Change("solved", key) for key in state.problems if key not in scanned and key not in scan.problems]
    return changes


def _change(picture: ScannedPicture, state: LibraryState) -> Change:
    item, stamp = state.items.get(picture.key), (picture.size, picture.mtime)
    if item is not None and item.present and (item.size, item.mtime) == stamp:
        return Change("unchanged" if item.digest == picture.digest else "described", picture.key, picture, item)
    if state.problems.get(picture.key) == stamp:
        return Change("still bad", picture.key, picture, item)
    forgotten = state.forgotten.get(forgotten_key(state.number, picture.key)) if state.forgotten else None
    if forgotten is not None and (forgotten.size, forgotten.mtime) == stamp:
        return Change("forgotten", picture.key, picture, item)
    return Change("encode", picture.key, picture, item)


def pictures_to_encode(changes: Iterable[Change]) -> list[ScannedPicture]:
    """The pictures that must be read."""
    return [change.picture for change in changes if change.action == "encode" and change.picture is not None]


def resolve(rows: Sequence[Mapping[str, Any]], state: LibraryState) -> list[ContentChange]:
    """What to do with pictures that were read.

    Args:
        rows: of the encoder, which are committed together.
        state: after ``set_missing``, and with all earlier rows recorded.
    """
    moves: Counter[str] = Counter()
    new_ids: set[str] = set()
    return [_resolve_row(row, state, moves, new_ids) for row in rows]


def _resolve_row(row: Mapping[str, Any], state: LibraryState, moves: Counter[str], new_ids: set[str]) -> ContentChange:
    """Decide about one row.

    Args:
        moves: how many items of each content earlier rows have moved.
        new_ids: ids that earlier rows have got.
    """
    key, content = row["key"], str(row.get("hash"))
    item = state.items.get(key)
    if row.get("problem") is not None:
        return ContentChange("problem", item.id if item else "")
    same = item is not None and item.hash == content
    if content in state.forgotten_hashes and not same:
        return ContentChange("forgotten", item.id if item else "")
    if item is not None and same:
        return ContentChange("touched" if item.present else "returned", item.id)
    encoded = row.get("vector") is not None
    like = None if encoded else state.by_hash.get(content)
    if not encoded and like is None:
        return ContentChange("not encoded", "")
    if item is not None:
        return ContentChange("changed", item.id, like)
    missing = state.missing.get(content, [])
    if moves[content] < len(missing):
        moves[content] += 1
        old_key = missing[-moves[content]]
        return ContentChange("moved", state.items[old_key].id, moved_from=old_key)
    id = _new_id(key, state, new_ids)
    new_ids.add(id)
    return ContentChange("copied" if like else "added", id, like)


def _new_id(key: str, state: LibraryState, new_ids: set[str]) -> str:
    """A short id that is safe in a URL: a hash of the key, and of a counter if a renamed picture has that id."""
    turn = 0
    while True:
        id = short_hash(f"{state.number}/{key}" + (f"#{turn}" if turn else ""))
        if id not in state.ids and id not in new_ids:
            return id
        turn += 1


def short_hash(text: str) -> str:
    """A hash of 16 characters."""
    return text_hash(text, 8)


def forgotten_key(number: int, key: str) -> str:
    """The hash by which the path of a forgotten picture is recognised; it does not contain the path."""
    return short_hash(f"forgotten {number}/{key}")


# The list of forgotten pictures, and its copy.


def write_copy(generation: Path, tables: Tables) -> None:
    """Copy the list; call it before the commit that changes the table."""
    count = tables.count("forgotten")
    if not count or count > MAX_COPIED_FORGOTTEN_ROWS:
        (generation / COPY_FILE).unlink(missing_ok=True)
        return
    rows = [row for batch in tables.column("forgotten", FORGOTTEN_COLUMNS) for row in batch.to_pylist()]
    replace_json(generation / COPY_FILE, {"pictures": rows})


def read_copy(generation: Path) -> list[dict[str, Any]] | None:
    """The rows of the copy; None where there is none.

    Raises:
        UserError: when it is damaged.
    """
    if not (generation / COPY_FILE).is_file():
        return None
    found = read_object(generation / COPY_FILE, "the next forget writes it again", COPY_SCHEMA)
    return list(found["pictures"])


def intact_copy(generation: Path) -> list[dict[str, Any]] | None:
    """The rows of the copy; None where there is none, or a damaged one."""
    try:
        return read_copy(generation)
    except (UserError, OSError):
        return None


def restore_from_copy(generation: Path, tables: Tables) -> None:
    """Put what the copy has, and the damaged table has not, back into the table.

    A process may have been killed between the copy and its commit, so pictures that are items are not forgotten.
    """
    rows = intact_copy(generation) or []
    items = tables.column("items", ("source", "key"))
    there = {forgotten_key(row["source"], row["key"]) for batch in items for row in batch.to_pylist()}
    tables.put("forgotten", [row for row in rows if row["id"] not in there])


def forgotten_rows(library: Path, manifest: Manifest) -> Sequence[Mapping[str, Any]]:
    """The list of a library that is rebuilt, from its table or from the copy."""
    batches = old_batches(library, manifest, "forgotten", FORGOTTEN_COLUMNS)
    if batches is not None:
        return [row for batch in batches for row in batch.to_pylist()]
    rows = intact_copy(library / str(manifest.generation))
    if rows is None:
        log.warning("%s: which pictures were forgotten cannot be read, so they are indexed again", library)
    return rows or []


def drop_forgotten(tables: Tables, number: int) -> None:
    """Delete the list of forgotten pictures of a source, so that they are indexed again."""
    batches = tables.column("forgotten", ("id",), f"source = {number}")
    tables.drop("forgotten", [id for batch in batches for id in batch["id"].to_pylist()])
