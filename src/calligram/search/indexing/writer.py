"""Write to a library: rows of encoded pictures go into the tables and count together at the next commit."""

from __future__ import annotations

import heapq
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.progress import Track, silent
from calligram.search.filters import columns
from calligram.search.filters.columns import ColumnKind
from calligram.search.indexing.diff import ContentChange, LibraryState, resolve, write_copy
from calligram.search.indexing.sources import PictureFacts, PictureSource, ScannedPicture
from calligram.search.library.library import Library
from calligram.search.library.manifest import MANIFEST, Manifest, SourceRecord, write_manifest
from calligram.search.library.matchers import MatcherEncoder
from calligram.search.library.tables import INDEXES, Tables, open_changes, open_indexes
from calligram.search.query.cutoff import measure_scales, stored_scales, with_scales
from calligram.search.vectors.index import Index
from calligram.search.vectors.table_files import all_files, check_tables, table_records
from calligram.text import composed, indexed_words

VERSION_GRACE_SECONDS = 600.0
"""for so long, a reader that has opened an earlier version of the library can still read it"""
SAMPLED_QUERIES = 256
"""vectors of one kind that try the search for the other kind"""
Row = Mapping[str, Any]
Rows = dict[str, Row]


@dataclass
class PendingRows:
    """What one commit puts into the tables and the index of images."""

    items: Rows = field(default_factory=dict)
    """rows of the items table, by id"""
    new: set[str] = field(default_factory=set)
    """ids that no item has had"""
    vectors: dict[str, bytes] = field(default_factory=dict)
    """of items that are new in the index, or have another content"""
    moved: list[str] = field(default_factory=list)
    """items in the index whose columns changed"""
    thumbnails: list[Row] = field(default_factory=list)
    parts: list[Row] = field(default_factory=list)
    problems: dict[str, Row] = field(default_factory=dict)
    """by key"""
    gone: set[str] = field(default_factory=set)
    solved: list[str] = field(default_factory=list)
    """keys of files that could not be used before"""
    precisions: set[str] = field(default_factory=set)
    """of the networks that encoded the new vectors"""


class LibraryWriter:
    """Changes a library. No reader sees a change until ``commit`` has replaced the manifest."""

    def __init__(self, folder: Path, manifest: Manifest, name: str = MANIFEST) -> None:
        """Args:
        folder: of the library.
        manifest: the last that was committed; later writes to the tables are undone.
        name: of the manifest's file.
        """
        self.folder, self.manifest, self.name = folder, manifest, name
        self.generation_folder = folder / str(manifest.generation)
        self._old_files, self._compared = all_files(self.generation_folder), False
        self.tables = Tables.write(self.generation_folder / "tables", manifest.versions, manifest.files)
        self.kinds = dict(columns.LIBRARY_COLUMNS) | dict(manifest.kinds)
        self.images, self.captions = open_indexes(self.generation_folder, manifest, writing=True)
        self.pending = open_changes(self.generation_folder, manifest)
        self.pending.undo(self.images, self._present)
        self.written: set[str] = set()
        """ids of the items that this writer has written"""
        self.not_encoded: list[str] = []
        """keys of the rows added last that have no encodings and no item to copy them from"""

    def _present(self, ids: Sequence[str]) -> set[str]:
        found = self.tables.take("items", ids, ["id", "state"]).to_pylist()
        return {row["id"] for row in found if row["state"] == "present"}

    def add_rows(
        self, rows: Sequence[Row], pictures: Mapping[str, ScannedPicture], source: PictureSource, state: LibraryState
    ) -> Counter[str]:
        """Write rows of the encoder and commit; returns the number of rows for each outcome.

        Args:
            rows: as in ``encode.ENCODED_ROW``.
            pictures: of the scan, by key.
            source: of the pictures.
            state: of the library; records the commit.
        """
        resolved = list(zip(rows, resolve(rows, state), strict=True))
        wanted = {c.like or c.id for _, c in resolved if c.outcome not in ("added", "not encoded")} - {""}
        old = {row["id"]: row for row in self.tables.take("items", sorted(wanted)).to_pylist()}
        pending = PendingRows()
        for row, change in resolved:
            self._prepare(row, change, pictures[row["key"]], source, state, old, pending)
        self._copy_encodings(resolved, old, pending)
        self._write(pending, state.number)
        self.manifest = self.manifest.with_precisions(pending.precisions)
        self.commit()
        state.record(resolved, pending.items, pending.gone)
        self.not_encoded = [row["key"] for row, change in resolved if change.outcome == "not encoded"]
        return Counter(change.outcome for _, change in resolved)

    def _prepare(
        self,
        row: Row,
        change: ContentChange,
        picture: ScannedPicture,
        source: PictureSource,
        state: LibraryState,
        old: Rows,
        pending: PendingRows,
    ) -> None:
        """Sort one row into the tables that it changes."""
        if change.outcome == "not encoded":
            return
        if change.outcome in ("problem", "forgotten"):
            if change.outcome == "problem":
                pending.problems[row["key"]] = row
            if change.id:
                pending.gone.add(change.id)
            return
        content = old[change.like or change.id] if row.get("vector") is None else row
        if change.outcome in ("moved", "touched", "returned"):
            content = {**old[change.id]}
        content = {**content, "hash": row["hash"]}
        pending.items[change.id] = item_row(
            change.id, picture, state.number, source.about(picture), content, self.kinds
        )
        pending.new |= {change.id} if change.outcome in ("added", "copied") else set()
        pending.solved += [row["key"]] if row["key"] in state.problems else []
        if change.outcome in ("added", "changed", "copied") and row.get("vector") is not None:
            pending.vectors[change.id] = row["vector"]
            pending.precisions |= {row["precision"]} if row.get("precision") else set()
            pending.thumbnails += [{"id": change.id, "jpeg": row["jpeg"]}] if row.get("jpeg") else []
            if row.get("rerank") is not None:
                parts = {name: row[name] for name in ("parts", "count", "mask")}
                pending.parts.append({"id": change.id, "vector": row["rerank"], **parts})
        elif change.outcome in ("moved", "touched") and old[change.id]["state"] == "present":
            pending.moved.append(change.id)

    def _copy_encodings(self, resolved: Sequence[tuple[Row, ContentChange]], old: Rows, pending: PendingRows) -> None:
        """Copy the encodings of items with the same content, and put items that return back into the index."""
        like = {c.id: c.like for _, c in resolved if c.like is not None}
        back = [c.id for _, c in resolved if c.outcome in ("returned", "moved") and old[c.id]["state"] != "present"]
        vectors = self._vectors(sorted({*like.values(), *back}), old)
        pending.vectors |= {id: vectors[other] for id, other in like.items()} | {id: vectors[id] for id in back}
        for name, target in (("thumbnails", pending.thumbnails), ("parts", pending.parts)):
            rows = {row["id"]: row for row in self.tables.take(name, sorted(set(like.values()))).to_pylist()}
            target += [{**rows[other], "id": id} for id, other in like.items() if other in rows]

    def _vectors(self, ids: Sequence[str], old: Rows) -> dict[str, bytes]:
        """Vectors from the index, or from the table ``shelf`` for items that are gone."""
        present = [id for id in ids if old[id]["state"] == "present"]
        gone = [id for id in ids if old[id]["state"] != "present"]
        found = {row["id"]: row["vector"] for row in self.tables.take("shelf", gone).to_pylist()}
        if present:
            found |= {id: v.tobytes() for id, v in zip(present, self.images.vectors(present), strict=True)}
        return found

    def _write(self, pending: PendingRows, number: int) -> None:
        ids = list(pending.vectors)
        self.pending.note([*ids, *pending.gone])
        tables = {"thumbnails": pending.thumbnails, "parts": pending.parts, "items": list(pending.items.values())}
        # Tables are independent of each other, and none counts before the commit: write them in parallel.
        with ThreadPoolExecutor(len(tables)) as pool:
            writing = [pool.submit(self.tables.put, name, rows, pending.new) for name, rows in tables.items()]
            self._write_vectors(ids, pending)
            for done in writing:
                done.result()
        self.written |= pending.items.keys()
        if self.tables.count("shelf"):
            self.tables.drop("shelf", ids)
        self.drop_problems(number, pending.solved)
        self.put_problems(number, pending.problems)
        self.mark_gone(sorted(pending.gone))

    def _write_vectors(self, ids: Sequence[str], pending: PendingRows) -> None:
        if ids:
            stacked = np.stack([np.frombuffer(pending.vectors[id], dtype=np.float32) for id in ids])
            self.images.add(ids, stacked, self._columns(pending.items[id] for id in ids))
        if moved := [id for id in pending.moved if id not in pending.vectors]:
            self.images.update(moved, self._columns(pending.items[id] for id in moved))

    def _columns(self, rows: Iterable[Row]) -> Any:
        roots = {source.number: source.root for source in self.manifest.sources}
        return columns.table_of([columns.row_of(row, roots[row["source"]]) for row in rows], self.kinds)

    def update_facts(self, pictures: Sequence[ScannedPicture], source: PictureSource, state: LibraryState) -> None:
        """Write the facts and captions that a source now has for pictures that did not change."""
        by_id = {state.items[picture.key].id: picture for picture in pictures}
        rows = [
            {**row, **_facts(by_id[row["id"]].key, source.about(by_id[row["id"]]), row, self.kinds)}
            for row in self.tables.take("items", list(by_id)).to_pylist()
        ]
        self.put_items(rows)

    def put_items(self, rows: Sequence[Row]) -> None:
        """Replace rows of present items, with their columns for conditions."""
        self.tables.put("items", rows)
        self.images.update([row["id"] for row in rows], self._columns(rows))
        self.written |= {row["id"] for row in rows}

    def mark_gone(self, ids: Sequence[str]) -> None:
        """Take items out of the search, and keep their vectors in the table ``shelf``."""
        rows = [row for row in self.tables.take("items", ids).to_pylist() if row["state"] == "present"]
        if rows:
            present = [row["id"] for row in rows]
            kept: NDArray[np.float32] = self.images.vectors(present)
            self.tables.put("shelf", [{"id": id, "vector": v.tobytes()} for id, v in zip(present, kept, strict=True)])
            self.tables.put("items", [{**row, "state": "gone"} for row in rows])
            self.pending.remove(self.images, present)

    def put_problems(self, number: int, problems: Mapping[str, Row]) -> None:
        """Record files that cannot be used.

        Args:
            number: of the source.
            problems: by key; rows have ``problem`` and, if known, ``bytes`` and ``mtime``.
        """
        rows = [
            {"id": f"{number}/{key}", "source": number, "key": key, "reason": row["problem"]}
            | {"bytes": row.get("bytes", -1), "mtime": row.get("mtime", -1)}
            for key, row in problems.items()
        ]
        self.tables.put("problems", rows)

    def drop_problems(self, number: int, keys: Iterable[str]) -> None:
        """Delete the records of files that can be used now, or are gone."""
        self.tables.drop("problems", [f"{number}/{key}" for key in keys])

    def commit(self) -> None:
        """Replace the manifest, so that readers see everything written so far."""
        counts = {
            "items": self.tables.count("items", "state = 'present'"),
            "gone": self.tables.count("items", "state != 'present'"),
            **{name: self.tables.count(name) for name in ("captions", "problems")},
        }
        if not self._compared:  # else a command could commit, and then fail because it meets damage
            check_tables(self.generation_folder, self.manifest.files)
            self._compared = True
        now, before, versions = time.time(), self.manifest, self.versions()
        if before.versions and versions["forgotten"] != before.versions["forgotten"]:
            write_copy(self.generation_folder, self.tables)
        earlier = [(until, versions) for until, versions in before.earlier if until > now]
        if before.versions:
            earlier.append((now + VERSION_GRACE_SECONDS, before.versions))
        self.manifest = replace(
            before,
            versions=versions,
            files=table_records(self.generation_folder, versions, before.files, self._old_files),
            earlier=tuple(earlier),
            counts=counts,
            kinds=dict(self.kinds),
            mapped={name: index.mapped for name, index in self.indexes.items() if index.mapped is not None},
        )
        write_manifest(self.folder, self.manifest, self.name)
        self.pending.done(self.images)

    def versions(self) -> dict[str, int]:
        """The present version of each table."""
        found = self.tables.versions()
        return found | {name: index.version for name, index in self.indexes.items() if index.version is not None}

    @property
    def indexes(self) -> dict[str, Index]:
        """The two vector indexes, by their names in the manifest."""
        return dict(zip(INDEXES, (self.images, self.captions), strict=True))

    @property
    def unfinished(self) -> bool:
        """Whether ``optimize`` would make searches much faster, without any other change."""
        return any(index.unfinished for index in self.indexes.values())

    def _sample(self, name: str) -> NDArray[np.float32]:
        """Vectors of a few images or captions, in effect random, because ids are hashes."""
        table, where = ("items", "state = 'present'") if name == INDEXES[0] else ("captions", None)
        batches = self.tables.column(table, ("id",), where)
        ids = heapq.nsmallest(SAMPLED_QUERIES, (id for batch in batches for id in batch["id"].to_pylist()))
        return self.indexes[name].vectors(ids)

    def add_source(self, root: Path, kind: Any) -> SourceRecord:
        """The record of the source at a folder, added with the next commit where it is new."""
        self.manifest, source = self.manifest.with_source(root, kind)
        return source

    def optimize(self, track: Track = silent, *, drop_old_versions: bool = False) -> None:
        """Compact and index the tables, commit, and delete versions that no reader can have open.

        Args:
            track: shows progress.
            drop_old_versions: delete every earlier version now, so that nothing deleted can be read any more.
        """
        self.tables.optimize()
        for name, other in zip(INDEXES, INDEXES[::-1], strict=True):
            queries = partial(self._sample, other)  # texts find images, and images find texts
            self.indexes[name].optimize(track, queries=queries, purge=drop_old_versions)
        self.commit()
        if drop_old_versions:
            self.manifest = replace(self.manifest, earlier=())
            write_manifest(self.folder, self.manifest, self.name)
        readable = [versions for until, versions in self.manifest.earlier if until > time.time()]
        oldest = {
            name: min(versions[name] for versions in [*readable, self.manifest.versions])
            for name in self.manifest.versions
        }
        self.tables.drop_versions(oldest)
        for name, index in self.indexes.items():
            index.drop_versions(oldest.get(name))

    def store_scales(self, encoder: MatcherEncoder, reranker: MatcherEncoder | None) -> None:
        """Measure the score scales of what is committed and store them in the manifest, so that no search has to."""
        matchers = encoder.fingerprint, None if reranker is None else reranker.fingerprint
        if stored_scales(self.manifest, *matchers) is not None:
            return
        try:
            scales = measure_scales(Library(self.folder, self.manifest, (0, 0)), encoder, reranker)
        except UserError:  # such a library can be indexed; whoever searches it gets the error
            return
        self.manifest = with_scales(self.manifest, scales)
        write_manifest(self.folder, self.manifest, self.name)


def remove_folder(folder: Path) -> None:
    """Delete a folder that no manifest names."""
    import shutil

    if os.path.isdir(folder):
        shutil.rmtree(folder, ignore_errors=True)


# Rows of the items table.


def item_row(
    id: str,
    picture: ScannedPicture,
    number: int,
    about: PictureFacts,
    content: Mapping[str, Any],
    kinds: dict[str, ColumnKind],
) -> dict[str, Any]:
    """The row of a picture that is there.

    Args:
        id: of the item.
        picture: of the scan.
        number: of the source.
        about: facts and captions of the source.
        content: content hash, size in pixels, and EXIF facts or metadata as JSON: from the encoder, or from the row of
            an item with the same content.
        kinds: kinds of columns by name; new columns are added to it.
    """
    place = PurePosixPath(picture.key)
    return {
        **{"id": id, "source": number, "key": picture.key, "file": picture.file, "offset": picture.offset},
        **{"name": place.name, "folder": "" if str(place.parent) == "." else str(place.parent)},
        **{"bytes": picture.size, "mtime": picture.mtime, "hash": content["hash"], "state": "present"},
        **{"width": content.get("width"), "height": content.get("height")},
        **_facts(picture.key, about, content, kinds),
    }


def _facts(key: str, about: PictureFacts, content: Mapping[str, Any], kinds: dict[str, ColumnKind]) -> dict[str, Any]:
    """The columns that depend on facts and captions."""
    known = json.loads(content.get("facts") or content.get("metadata") or "{}")
    own = {name: known[name] for name in columns.PICTURE_COLUMNS if name in known}
    metadata = columns.fit_kinds({**own, **about.columns}, kinds)
    return {
        "metadata": json.dumps(metadata, ensure_ascii=False),
        "digest": about.digest,
        "captions": list(about.captions),
        "words": words_of(key, about.captions, str(metadata.get(columns.TEXT_COLUMN, ""))),
    }


def words_of(key: str, captions: tuple[str, ...], text: str = "") -> str:
    """The text for full-text search: words of the path without its suffix, captions, and text inside the picture."""
    path = re.sub(r"\.\w{1,5}$", "", composed(key))
    texts = (*captions, *([text] if text else []))
    return "\n".join((" ".join(indexed_words(path)), *(composed(text) for text in texts)))
