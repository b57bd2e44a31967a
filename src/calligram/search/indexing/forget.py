"""Delete items from a library, and leave their pictures out of later indexing runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calligram.errors import UserError
from calligram.files import lock_folder
from calligram.progress import Track, silent
from calligram.search.filters.columns import row_of
from calligram.search.filters.parser import holds, parse
from calligram.search.indexing.captions import caption_columns, remove_captions
from calligram.search.indexing.diff import forgotten_key
from calligram.search.indexing.writer import LibraryWriter
from calligram.search.library.manifest import Manifest, check_address, read_manifest
from calligram.search.library.matchers import load_encoders

READ_COLUMNS = (
    "id",
    "source",
    "key",
    "file",
    "offset",
    "bytes",
    "mtime",
    "hash",
    "state",
    "folder",
    "name",
    "width",
    "height",
    "metadata",
)


def forget_items(
    library: Path,
    names: Sequence[str],
    *,
    where: str | None = None,
    gone: bool = False,
    index: str | None = None,
    dry_run: bool = False,
    report: Callable[[str], None] = lambda path: None,
    track: Track = silent,
) -> int:
    """Delete the items that satisfy all given criteria, with their vectors, thumbnails, parts and captions.

    Returns the number of items. The picture files stay. A later indexing run leaves them out, also under another name,
    until their content changes or the run is started with ``again``.

    Args:
        library: folder of the library.
        names: ids, or paths of pictures or of folders.
        where: a condition on columns.
        gone: items whose file is no longer there.
        index: address of the vectors, if they are not in the library's folder.
        dry_run: find the items, and delete nothing.
        report: called with the path of each item.
        track: shows progress.
    """
    if not names and where is None and not gone:
        raise UserError("nothing to forget is given; give ids, paths, --where CONDITION or --gone")
    manifest = read_manifest(library)
    with lock_folder(library, "library"):
        manifest = read_manifest(library, writing=True)
        check_address(library, manifest, index)
        writer = LibraryWriter(library, manifest)
        rows = _chosen(writer, manifest, names, where, gone)
        roots = {source.number: source.root for source in manifest.sources}
        for row in rows:
            report(_path_or_name(row, roots[row["source"]]))
        if rows and not dry_run:
            _delete(writer, rows)
            writer.commit()
            writer.optimize(track, drop_old_versions=True)
            _store_scales(writer)
    return len(rows)


def _store_scales(writer: LibraryWriter) -> None:
    """Measure the score scales of the remaining items, unless the matcher is missing, which is no error here."""
    try:
        encoders = load_encoders(writer.folder, writer.manifest)
    except UserError:
        return
    writer.store_scales(*encoders)


def _chosen(
    writer: LibraryWriter, manifest: Manifest, names: Sequence[str], where: str | None, gone: bool
) -> list[Mapping[str, Any]]:
    roots = {source.number: source.root for source in manifest.sources}
    condition = parse(where, manifest.kinds) if where is not None else None
    found, matched = [], set[str]()
    paths = {os.path.abspath(name): name for name in names}
    for batch in writer.tables.column("items", READ_COLUMNS):
        for row in batch.to_pylist():
            named = _named(row, roots[row["source"]], names, paths)
            matched |= named
            held = condition is None or holds(condition, row_of(row, roots[row["source"]]))
            if (named or not names) and held and (not gone or row["state"] != "present"):
                found.append(row)
    unmatched = [name for name in names if name not in matched]
    if unmatched:
        raise UserError(f"{writer.folder} has no item with the id or path '{unmatched[0]}'; nothing was forgotten")
    return found


def _named(row: Mapping[str, Any], root: str, names: Sequence[str], paths: Mapping[str, str]) -> set[str]:
    """The names that mean this item: its id, its path within the source, its whole path, or a folder above it."""
    if not names:
        return set()
    own = {row["id"], row["key"]} & set(names)
    for place in {os.path.join(root, row["key"]), _path_or_name(row, root)}:
        while place != os.path.dirname(place):
            if place in paths:
                own.add(paths[place])
            place = os.path.dirname(place)
    return own


def _path_or_name(row: Mapping[str, Any], root: str) -> str:
    """The path of an item as search prints it; with the time of a frame of a video; the name of an item in a shard."""
    if row["file"] is None or row["offset"] >= 0:
        return str(row["name"])
    in_folder = row["key"].startswith(row["file"])  # in a collection the key is the id of the image
    return os.path.join(root, row["key"] if in_folder else row["file"])


def _delete(writer: LibraryWriter, rows: Sequence[Mapping[str, Any]]) -> None:
    ids = [row["id"] for row in rows]
    marks = {
        forgotten_key(row["source"], row["key"]): {name: row[name] for name in ("source", "bytes", "mtime", "hash")}
        for row in rows
    }
    writer.tables.put("forgotten", [{"id": id, **row} for id, row in marks.items()])
    for name in ("items", "thumbnails", "parts", "shelf"):
        writer.tables.drop(name, ids)
    writer.pending.remove(writer.images, ids)
    _delete_captions(writer, set(ids))


def _delete_captions(writer: LibraryWriter, ids: set[str]) -> None:
    """Remove the items from their captions, and delete captions without any other item."""
    left: list[dict[str, Any]] = []
    alone: list[dict[str, Any]] = []
    for batch in writer.tables.column("captions", ("id", "source", "key", "text", "items")):
        for row in batch.to_pylist():
            if ids.intersection(row["items"]):
                rest = [id for id in row["items"] if id not in ids]
                (left if rest else alone).append({**row, "items": rest})
    if left:
        writer.tables.put("captions", left)
        writer.captions.update([row["id"] for row in left], caption_columns(writer, [row["items"][0] for row in left]))
    remove_captions(writer, [row["id"] for row in alone])
