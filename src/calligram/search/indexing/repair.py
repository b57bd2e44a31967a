"""Find damage in a library, and mend it: drop damaged rows, and encode their pictures again."""

from __future__ import annotations

import logging
import os
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from calligram.checksums import DamagedFileError
from calligram.device import use_half_networks
from calligram.errors import UserError
from calligram.files import lock_folder
from calligram.models.damage import Damage, file_damage
from calligram.progress import Track, silent
from calligram.search.indexing.diff import COPY_FILE, intact_copy, read_copy, restore_from_copy, write_copy
from calligram.search.indexing.encode import wants_half_networks
from calligram.search.indexing.run import IndexingRun, OpenedWriter, index_source, remove_library_leftovers
from calligram.search.indexing.sources import reopen
from calligram.search.indexing.writer import LibraryWriter
from calligram.search.library.library import Library
from calligram.search.library.manifest import MANIFEST, Manifest, check_address, read_manifest
from calligram.search.library.matchers import NO_RERANKER, LibraryMatchers
from calligram.search.library.tables import INDEXES, SCHEMAS
from calligram.search.query.albums import ALBUMS_FILE, read_albums
from calligram.search.query.selection import SEARCHES_FILE, saved_searches
from calligram.search.vectors.table_files import LAST_VERSION, SUFFIX

log = logging.getLogger(__name__)

FRAGMENTS_FIELD, FRAGMENT_ID_FIELD, DATA_FILES_FIELD, PATH_FIELD = 2, 1, 2, 1
"""numbers of fields in the description of a version by Lance (protocol buffers)"""
ROWS_PER_FRAGMENT = 1 << 32
"""the address of a row is the number of its fragment times this, plus its place"""


def library_damage(folder: Path, index: str | None = None) -> list[Damage]:
    """What is damaged in a library; all files are read.

    Args:
        folder: of the library.
        index: address of the vectors, if they are not in its folder.
    """
    while True:
        before = _manifest_bytes(folder)
        found = _present_damage(folder, index)
        if not found or _manifest_bytes(folder) == before:  # else a commit has replaced files meanwhile
            return found


def _manifest_bytes(folder: Path) -> bytes:
    try:
        return (folder / MANIFEST).read_bytes()
    except OSError:
        return b""


def _present_damage(folder: Path, index: str | None) -> list[Damage]:
    try:
        manifest = read_manifest(folder)
        check_address(folder, manifest, index)
    except UserError as error:
        return [Damage(folder / MANIFEST, str(error), "all pictures are encoded again by index --rebuild")]
    generation, found = folder / str(manifest.generation), list[Damage]()
    for table, records in manifest.files.items():
        found += file_damage(generation / table, {**records}, _cost(manifest, generation, table), missing=True)
    found += _damaged_lists(folder, generation)
    for name, record in manifest.mapped.items():
        place = generation / "index" / f"{name.removeprefix('index.')}.mapped" / str(record.get("folder"))
        cost = "vectors are copied again; no picture is encoded"
        found += file_damage(place, dict(record.get("checksums", {})), cost)
    return found if found else _unreadable(folder, manifest, index)


def _damaged_lists(folder: Path, generation: Path) -> Iterator[Damage]:
    """Files beside the tables: the copy of the list of forgotten pictures, saved searches, and albums."""
    try:
        read_copy(generation)
    except (UserError, OSError) as error:
        yield Damage(generation / COPY_FILE, str(error), "it is written again from its table")
    for name, read, what in ((SEARCHES_FILE, saved_searches, "saved searches"), (ALBUMS_FILE, read_albums, "albums")):
        try:
            read(folder)
        except (UserError, OSError) as error:
            kept = folder / f"{name}.damaged"
            cost = f"the file is renamed to {kept.name}, and {what} are lost"
            yield Damage(folder / name, str(error), cost, partial(os.replace, folder / name, kept))


def _cost(manifest: Manifest, generation: Path, table: str) -> str:
    if table.endswith("problems.lance"):
        return "pictures that could not be used are tried again"
    if table.endswith("forgotten.lance"):
        if intact_copy(generation) is not None:
            return f"the list of forgotten pictures is restored from {COPY_FILE}"
        return "the list of forgotten pictures is incomplete: with --repair, forgotten pictures come back"
    if table.endswith("captions.lance"):
        return f"up to {manifest.counts.get('captions', 0):,} captions are encoded again"
    return f"up to {sum(manifest.counts.get(name, 0) for name in ('items', 'gone')):,} pictures are encoded again"


def _unreadable(folder: Path, manifest: Manifest, index: str | None) -> list[Damage]:
    """Tables that cannot be read although no checksum differs: files are missing, or there are no checksums."""
    name = "the tables"
    try:
        library = Library.open(folder, index=index)
        for name in SCHEMAS:
            for _ in library._tables.column(name, SCHEMAS[name].names):
                pass
        for name, index_opened in zip(INDEXES, (library.images, library.captions), strict=True):
            if name == INDEXES[0] and len(index_opened) != len(library):
                raise ValueError(f"{len(index_opened)} vectors for {len(library)} items")
    except (UserError, ValueError, RuntimeError, OSError, KeyError) as error:
        cost = f"all {manifest.counts.get('items', 0):,} pictures are encoded again"
        return [Damage(folder / str(manifest.generation), f"{name}: {str(error).splitlines()[0][:200]}", cost)]
    return []


def mend_library(
    folder: Path, *, index: str | None = None, device: torch.device | str = "cpu", track: Track = silent
) -> str:
    """Mend a damaged library; returns what was done.

    Rows in damaged files are dropped, with everything that belongs to the same items. Their pictures are then encoded
    again from the sources. Where a table as a whole cannot be read, all pictures are encoded again.

    Raises:
        UserError: when the matcher or a source of the library cannot be opened; nothing has changed then.
    """
    manifest = read_manifest(folder, writing=False)
    records = {name: getattr(manifest, name) for name in ("matcher", "reranker", "localizer")}
    named = {name: None if record is None else record.source for name, record in records.items()}
    models = LibraryMatchers.load(str(named["matcher"]), named["reranker"] or NO_RERANKER, named["localizer"])
    sources = [reopen(source) for source in manifest.sources]
    models.check(manifest, folder, sources[-1].root)
    half = wants_half_networks(None, manifest.precisions)
    try:
        counts: Counter[str] = Counter()
        with lock_folder(folder, "library"), use_half_networks(half):
            writer = _without_damaged_rows(folder, manifest)
            opened = OpenedWriter(writer, manifest_changed=True)
            for source in sources:
                counts.update(IndexingRun(writer, models, source, device, track).run(again=False))
            write_copy(writer.generation_folder, writer.tables)
            opened.finish(models, device, track, changed=True)
        return f"{counts['added'] + counts['changed']:,} pictures were encoded again"
    except (UserError, RuntimeError, ValueError, OSError, KeyError) as error:
        log.info("single items cannot be mended (%s), so all pictures are encoded again", str(error).splitlines()[0])
    report = index_source(
        models, sources[-1].root, folder, engine=index, rebuild=True, device=device,
        precision="auto" if half else "fp32", track=track,
    )  # fmt: skip
    return f"all {report.library['items']:,} pictures were encoded again"


def remove_killed_files(folder: Path) -> None:
    """Delete what killed processes left in a library that is whole; nothing while another process writes it."""
    with suppress(UserError), lock_folder(folder, "library"):
        remove_library_leftovers(folder, read_manifest(folder, writing=False))


def _without_damaged_rows(folder: Path, manifest: Manifest) -> LibraryWriter:
    """A writer whose tables have no rows of damaged files."""
    generation, damaged = folder / str(manifest.generation), dict[str, list[str]]()
    for table, records in manifest.files.items():
        for damage in file_damage(generation / table, {**records}, "", missing=True):
            damaged.setdefault(table, []).append(str(damage.path.relative_to(generation / table)))
    if any(file.startswith(("_versions", "_deletions")) for files in damaged.values() for file in files):
        raise DamagedFileError(generation, "which rows belong to a table cannot be read", "")
    writer = LibraryWriter(folder, replace(manifest, files={}, mapped={}))
    for name, table in _opened(writer).items():
        files = damaged.get(f"index/{name.removeprefix('index.')}{SUFFIX}" if "." in name else f"tables/{name}{SUFFIX}")
        if files:
            _drop_rows(generation, name, table, manifest.versions[name], files)
            if name == "forgotten":
                restore_from_copy(generation, writer.tables)
    _drop_unmatched(writer)
    return writer


def _opened(writer: LibraryWriter) -> dict[str, Any]:
    """All tables of a library, as Lance opened them."""
    indexes = {name: index._table for name, index in writer.indexes.items() if hasattr(index, "_table")}
    return {**writer.tables._opened, **indexes}


def _drop_rows(generation: Path, name: str, table: Any, version: int, files: Sequence[str]) -> None:
    """Delete the rows of damaged files from a table, and its indexes; ``optimize`` makes these again."""
    for index in table.list_indices():
        table.drop_index(index.name)
    place = generation / (f"index/{name.removeprefix('index.')}" if "." in name else f"tables/{name}")
    fragments = fragments_of(place.with_name(f"{place.name}{SUFFIX}"), version)
    for number in {fragments[file.removeprefix("data/")] for file in files if file.removeprefix("data/") in fragments}:
        first = number * ROWS_PER_FRAGMENT
        table.delete(f"_rowid >= {first} AND _rowid < {first + ROWS_PER_FRAGMENT}")


def _drop_unmatched(writer: LibraryWriter) -> None:
    """Delete what is not in all tables that it should be in."""
    tables, images = writer.tables, _opened(writer)[INDEXES[0]]
    ids = {name: _ids(tables.column(name, ("id",))) for name in ("thumbnails", "parts", "shelf", "captions")}
    vectors = _ids(images.search().select(["id"]).to_batches())
    reranks = writer.manifest.reranker is not None
    kept, dropped = set[str](), list[str]()
    for batch in tables.column("items", ("id", "state", "file")):
        for row in batch.to_pylist():
            there = row["id"] in (vectors if row["state"] == "present" else ids["shelf"])
            there &= row["file"] is None or row["id"] in ids["thumbnails"]
            there &= not reranks or row["id"] in ids["parts"]
            kept.add(row["id"]) if there else dropped.append(row["id"])
    tables.drop("items", dropped)
    for name in ("thumbnails", "parts", "shelf"):
        tables.drop(name, ids[name] - kept)
    writer.images.remove(sorted(vectors - kept))
    spoken = _ids(_opened(writer)[INDEXES[1]].search().select(["id"]).to_batches())
    tables.drop("captions", ids["captions"] - spoken)
    writer.captions.remove(sorted(spoken - ids["captions"]))


def _ids(batches: Any) -> set[str]:
    return {id for batch in batches for id in batch["id"].to_pylist()}


# Which rows are in which file: read from the description of a version.


def fragments_of(table: Path, version: int) -> dict[str, int]:
    """The number of the fragment that each data file of a version of a table holds."""
    data = (table / f"_versions/{LAST_VERSION - version:020}.manifest").read_bytes()
    (start,) = struct.unpack_from("<Q", data, len(data) - 16)
    (size,) = struct.unpack_from("<I", data, start)
    found: dict[str, int] = {}
    for number, value in _fields(data[start + 4 : start + 4 + size]):
        if number == FRAGMENTS_FIELD:
            inner = list(_fields(value))
            fragment = next((int(each) for field, each in inner if field == FRAGMENT_ID_FIELD), 0)
            paths = (dict(_fields(each))[PATH_FIELD] for field, each in inner if field == DATA_FILES_FIELD)
            found |= {path.decode(): fragment for path in paths}
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message in the format of protocol buffers."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind, size = key & 7, 0
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(data, place)
        else:
            size = {1: 8, 5: 4}[kind]
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
