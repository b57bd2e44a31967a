"""Selections of a library: searches that are saved under a name, and pictures that are exported.

Saved searches are in ``searches.json`` in the folder of the library. The file is not part of a commit: indexing and
rebuilding leave it as it is. It is replaced atomically, under a lock of its own.

An export is a folder, or the same as a zip: the pictures, and ``selection.csv`` and ``selection.json`` with the id, the
score, the captions and the metadata of each.
"""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from PIL import Image

from calligram.errors import UserError, unknown
from calligram.files import NEW_FOLDER, replace_folder, replace_json, scratch_folder, wait_for_lock
from calligram.picture_formats import PICTURE_FORMATS, PICTURE_SUFFIXES
from calligram.progress import Track, silent
from calligram.records import flag, list_of, read_version, record, text
from calligram.search.filters.parser import holds, parse
from calligram.search.library.library import Item, Library
from calligram.search.query.query import ItemId, Query, QueryTerm, weighted_text
from calligram.text import is_encodable

Placement = Literal["copy", "link", "symlink"]

SEARCHES_FILE = "searches.json"
SEARCHES_LOCK = ".searches.lock"
SEARCHES_FORMAT, SEARCHES_VERSION = "calligram-searches", 1
_TEXTS = list_of(text())
SEARCHES_SCHEMA = record(
    {
        "searches": list_of(
            record(
                {"name": text()},
                {"q": text(), "plus": _TEXTS, "minus": _TEXTS, "like": _TEXTS, "where": text(), "all": flag},
                closed=False,
            )
        )
    },
    closed=False,
)
MAX_SAVED_SEARCHES = 1000
MAX_NAME_CHARACTERS = 100
CSV_FILE, JSON_FILE = "selection.csv", "selection.json"
READ_ITEMS = 500
"""items that are read at a time"""
CAPTION_SEPARATOR = " | "
MAX_STEM_CHARACTERS = 100
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""a spreadsheet program would run a text that begins with one of them"""


# Saved searches.


@dataclass(frozen=True)
class SavedSearch:
    """A search under a name: texts, items and a condition. Pictures of a query are not stored."""

    name: str
    q: str = ""
    plus: tuple[str, ...] = ()
    """more texts, with a weight as in ``2:dog``"""
    minus: tuple[str, ...] = ()
    like: tuple[str, ...] = ()
    """ids of items"""
    where: str = ""
    all: bool = False

    def __post_init__(self) -> None:
        lists = (self.plus, self.minus, self.like)
        texts = (self.name, self.q, self.where, *(text for texts in lists for text in texts))
        if not all(isinstance(texts, tuple) for texts in lists) or not all(map(_is_text, texts)):
            raise UserError("a saved search has a name, a query, lists of terms, and a condition, all of them texts")
        check_name(self.name, "a saved search")
        if not (self.has_query or self.where.strip()):
            raise UserError("the search is empty; give a text, an item or a condition to save")

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> SavedSearch:
        """The search of a JSON object; names that it does not know are left out."""
        known: dict[str, Any] = {field.name: content[field.name] for field in fields(cls) if field.name in content}
        known |= {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        return cls(**known)

    @property
    def has_query(self) -> bool:
        """Whether it has something to search for, and not only a condition."""
        return bool(self.q.strip() or self.plus or self.like)

    def query(self) -> Query:
        """The terms of the query. Texts are never read as paths."""
        terms = [QueryTerm(self.q)] if self.q.strip() else []
        terms += [QueryTerm(ItemId(id)) for id in self.like]
        terms += [weighted_text(text) for text in self.plus]
        return Query((*terms, *(weighted_text(text, -1.0) for text in self.minus)))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and is_encodable(value)


def check_name(name: str, what: str) -> None:
    """Refuse a name that cannot be shown in a list."""
    if not name.strip() or len(name) > MAX_NAME_CHARACTERS or not (name.isprintable() and is_encodable(name)):
        raise UserError(f"the name of {what} has 1 to {MAX_NAME_CHARACTERS} printable characters")


def saved_searches(library: Path) -> list[SavedSearch]:
    """All saved searches of the library in a folder, in the order in which they were saved.

    Raises:
        UserError: when the file cannot be read.
    """
    file, todo = library / SEARCHES_FILE, "correct it, or delete it to lose the saved searches only"
    content = read_version(file, SEARCHES_FORMAT, SEARCHES_VERSION, SEARCHES_SCHEMA, todo)
    try:
        return [SavedSearch.of(row) for row in (content or {}).get("searches", ())]
    except UserError as error:
        raise UserError(f"{file} is damaged ({error}); {todo}") from error


def find_search(library: Path, name: str) -> SavedSearch:
    """The saved search of this name.

    Raises:
        UserError: when there is none.
    """
    known = {search.name: search for search in saved_searches(library)}
    if name not in known:
        raise unknown("saved search", name, known) if known else UserError(f"{library} has no saved searches")
    return known[name]


def save_search(library: Path, search: SavedSearch) -> bool:
    """Save a search, in place of an earlier one of the same name; returns whether there was one.

    Raises:
        UserError: when there are too many already.
    """
    with wait_for_lock(library / SEARCHES_LOCK):
        known = {other.name: other for other in saved_searches(library)}
        if search.name not in known and len(known) >= MAX_SAVED_SEARCHES:
            raise UserError(f"{library} has {MAX_SAVED_SEARCHES:,} saved searches; delete some before you save others")
        earlier = known.pop(search.name, None)
        _write(library, [*known.values(), search])
        return earlier is not None


def delete_search(library: Path, name: str) -> None:
    """Delete a saved search.

    Raises:
        UserError: when there is none of this name.
    """
    with wait_for_lock(library / SEARCHES_LOCK):
        find_search(library, name)
        _write(library, [search for search in saved_searches(library) if search.name != name])


def _write(library: Path, searches: Iterable[SavedSearch]) -> None:
    content = {"format": SEARCHES_FORMAT, "version": SEARCHES_VERSION, "searches": [asdict(s) for s in searches]}
    replace_json(library / SEARCHES_FILE, content, indent=1)


# Exports.


class SelectedPicture(NamedTuple):
    """An item to export, with its place among the hits of a search."""

    id: str
    rank: int | None = None
    score: float | None = None


def select_by_condition(library: Library, where: str) -> list[SelectedPicture]:
    """All present items that satisfy a condition, ordered by path."""
    condition = parse(where, library.kinds)
    rows = [row for row in library.rows() if row["state"] == "present" and holds(condition, row)]
    rows.sort(key=lambda row: (str(row["source"]), str(row["path"]), row["id"]))
    return [SelectedPicture(row["id"]) for row in rows]


@dataclass(frozen=True)
class ExportReport:
    """What was exported."""

    pictures: int
    problems: tuple[tuple[str, str], ...]
    """id and reason of items whose picture could not be read"""


class Exporter:
    """Names the files of an export and collects its table."""

    def __init__(self, library: Library, hidden: Collection[str] = ()) -> None:
        """Args:
        library: of the pictures.
        hidden: columns that are left out of the table.
        """
        self._library, self._hidden = library, frozenset(hidden)
        self._names: set[str] = {CSV_FILE.lower(), JSON_FILE.lower()}
        self.records: list[dict[str, Any]] = []
        self.problems: list[tuple[str, str]] = []

    def items(self, chosen: Sequence[SelectedPicture]) -> Iterator[tuple[SelectedPicture, Item]]:
        """The items, in order; unknown ids become problems."""
        for start in range(0, len(chosen), READ_ITEMS):
            part = chosen[start : start + READ_ITEMS]
            known = {item.id: item for item in self._library.known_items([picture.id for picture in part])}
            for picture in part:
                if picture.id in known:
                    yield picture, known[picture.id]
                else:
                    self.problems.append((picture.id, "the library has no such item"))

    def file_name(self, item: Item, suffix: str = "") -> str:
        """A name for the item's file that no other file of the export has, in any case of its letters."""
        given = PurePosixPath(item.name.replace("\\", "/")).name.replace("\0", "") or item.id
        if item.frame_time is not None and item.path is not None:
            given = f"{item.path.stem} {given}"
        stem, ending = PurePosixPath(given).stem[:MAX_STEM_CHARACTERS], suffix or PurePosixPath(given).suffix[:10]
        turn, name = 1, f"{stem}{ending}"
        while name.lower() in self._names:
            turn += 1
            name = f"{stem} ({turn}){ending}"
        self._names.add(name.lower())
        return name

    def add(self, picture: SelectedPicture, item: Item, file: str) -> None:
        """Add a row of the table."""
        metadata = {name: value for name, value in item.metadata.items() if name not in self._hidden}
        path = None if item.path is None else str(item.path)
        own = {"file": file, "id": item.id, "rank": picture.rank, "score": picture.score}
        self.records.append({**own, "captions": list(item.captions), "original": path, "metadata": metadata})

    def tables(self) -> tuple[str, str]:
        """The contents of ``selection.csv`` and ``selection.json``."""
        columns = sorted({name for row in self.records for name in row["metadata"]})
        first = ("file", "id", "rank", "score", "captions", "original")
        stream = io.StringIO(newline="")
        writer = csv.writer(stream)
        writer.writerow([*first, *columns])
        for row in self.records:
            own = {**row, "captions": CAPTION_SEPARATOR.join(row["captions"])}
            values = [*(own[name] for name in first), *(row["metadata"].get(name) for name in columns)]
            writer.writerow([plain_cell(value) for value in values])
        problems = [{"id": id, "reason": reason} for id, reason in self.problems]
        content = {"pictures": self.records, "problems": problems}
        return stream.getvalue(), json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def plain_cell(value: object) -> object:
    """A value of a table that no spreadsheet program takes for a formula.

    >>> plain_cell("=1+1"), plain_cell(-0.5)
    ("'=1+1", -0.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def export_folder(
    library: Library,
    chosen: Sequence[SelectedPicture],
    out: Path,
    *,
    placing: Placement = "copy",
    track: Track = silent,
) -> ExportReport:
    """Write pictures and their table into a new folder, which appears when it is complete.

    Args:
        library: of the pictures.
        chosen: items to export.
        out: folder that does not exist or is empty.
        placing: copies, hard links (copies across file systems) or symbolic links; pictures that are not files of their
            own are always copied.
        track: shows progress.

    Raises:
        UserError: when the folder is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder; give a new folder")
    export = Exporter(library)
    with scratch_folder(out) as scratch:
        new = scratch / NEW_FOLDER
        new.mkdir()
        for picture, item in track(export.items(chosen), "exporting pictures", len(chosen)):
            try:
                file = _place(library, item, new, export, placing)
            except UserError as error:
                export.problems.append((item.id, str(error)))
                continue
            export.add(picture, item, file)
        table, content = export.tables()
        (new / CSV_FILE).write_text(table, encoding="utf-8", newline="")
        (new / JSON_FILE).write_text(content, encoding="utf-8")
        replace_folder(scratch, out, listed=False)  # people change such a folder
    return ExportReport(len(export.records), tuple(export.problems))


def _place(library: Library, item: Item, folder: Path, export: Exporter, placing: Placement) -> str:
    """Write one picture; returns the name of its file."""
    if item.path is not None and item.frame_time is None and placing != "copy":
        if not item.path.is_file():
            raise UserError(f"the file is missing: {item.path}")
        name = export.file_name(item)
        try:
            if placing == "symlink":
                (folder / name).symlink_to(item.path.resolve())
            else:
                os.link(item.path, folder / name)
            return name
        except OSError:  # another file system, or one without links
            (folder / name).write_bytes(library.picture(item.id))
            return name
    data = library.picture(item.id)
    name = export.file_name(item, picture_suffix(item.name, data))
    (folder / name).write_bytes(data)
    return name


def picture_suffix(name: str, data: bytes) -> str:
    """The suffix for the file of a picture whose name has none, such as an id of a collection; otherwise empty."""
    if PurePosixPath(name).suffix.lower() in PICTURE_SUFFIXES:
        return ""
    try:
        with Image.open(io.BytesIO(data), formats=PICTURE_FORMATS) as opened:
            return f".{(opened.format or '').lower()}".replace("jpeg", "jpg").rstrip(".")
    except Exception:  # a damaged file is exported as it is
        return ""


class _Chunks(io.RawIOBase):
    """A stream that keeps what is written until it is taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        found, self._parts = b"".join(self._parts), []
        return found


def zip_parts(
    library: Library,
    chosen: Sequence[SelectedPicture],
    hidden: Collection[str] = (),
    cleaned: Callable[[bytes], bytes] | None = None,
) -> Iterator[bytes]:
    """The bytes of a zip of pictures and their table, one part for each picture, so that no more is in memory.

    Args:
        library: of the pictures.
        chosen: items to export.
        hidden: columns that are left out of the table.
        cleaned: changes the bytes of each picture, such as by removing metadata.
    """
    export, stream = Exporter(library, hidden), _Chunks()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:  # pictures are compressed already
        for picture, item in export.items(chosen):
            try:
                data = library.picture(item.id) if cleaned is None else cleaned(library.picture(item.id))
            except UserError as error:
                export.problems.append((item.id, str(error)))
                continue
            name = export.file_name(item, picture_suffix(item.name, data))
            archive.writestr(zipfile.ZipInfo(name), data)
            export.add(picture, item, name)
            yield stream.take()
        for name, text in zip((CSV_FILE, JSON_FILE), export.tables(), strict=True):
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    yield stream.take()
