"""The one who writes to a library: takes in rows, and commits them together."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.progress import Track, silent
from calligram.search.filters import columns
from calligram.search.filters.parser import Kind
from calligram.search.indexing.diff import Change, KnownItem, LibraryState
from calligram.search.indexing.exif import FACTS
from calligram.search.indexing.sources import PictureFacts, PictureSource, ScannedPicture
from calligram.search.library.indexes import INDEXES, PendingChanges, open_indexes
from calligram.search.library.library import Library
from calligram.search.library.manifest import MANIFEST, Manifest, SourceRecord, write_manifest
from calligram.search.library.tables import Tables
from calligram.search.query.cutoff import measure_scales, stored_scales, with_scales
from calligram.search.query.encoder import QueryEncoder
from calligram.search.query.keyword_fusion import composed

# Rows of the items table: what is written of a picture, from the worker's row and what the source says.


def item_row(
    id: str, entry: ScannedPicture, number: int, about: PictureFacts, seen: Mapping[str, Any], kinds: dict[str, Kind]
) -> dict[str, Any]:
    """A row for a picture that is there.

    Args:
        number: of the source.
        seen: content hash, size in pixels, and facts or metadata as JSON: from the worker, or of an item with the same
            content.
        kinds: learns columns that are new.
    """
    place = PurePosixPath(entry.key)
    return {
        **{"id": id, "source": number, "key": entry.key, "file": entry.file, "offset": entry.offset},
        **{"name": place.name, "folder": "" if str(place.parent) == "." else str(place.parent)},
        **{"bytes": entry.size, "mtime": entry.mtime, "hash": seen["hash"], "state": "present"},
        **{"width": seen.get("width"), "height": seen.get("height")},
        **_described(entry.key, about, seen, kinds),
    }


def described_again(
    old: Mapping[str, Any], entry: ScannedPicture, about: PictureFacts, kinds: dict[str, Kind]
) -> dict[str, Any]:
    """The row of an unchanged picture of which the source says something else now."""
    return {**old, **_described(entry.key, about, old, kinds)}


def _described(key: str, about: PictureFacts, seen: Mapping[str, Any], kinds: dict[str, Kind]) -> dict[str, Any]:
    inside = json.loads(seen.get("facts") or seen.get("metadata") or "{}")
    facts = {name: inside[name] for name in FACTS if name in inside}
    metadata = columns.fitted({**facts, **about.columns}, kinds)
    return {
        "metadata": json.dumps(metadata, ensure_ascii=False),
        "digest": about.digest,
        "captions": list(about.captions),
        "words": words_of(key, about.captions),
    }


def words_of(key: str, captions: tuple[str, ...]) -> str:
    """What a full-text search looks through: the words of the path, without the suffix, and the captions."""
    path = re.sub(r"\.\w{1,5}$", "", composed(key))
    return "\n".join((" ".join(re.findall(r"[^\W_]+", path)), *(composed(caption) for caption in captions)))


GRACE = 600.0
"""seconds for which a reader that has not looked again can still read what counted before"""
Row = Mapping[str, Any]
Rows = dict[str, Row]


@dataclass
class PendingRows:
    """What a commit puts into the tables and the index of images."""

    items: Rows = field(default_factory=dict)
    new: set[str] = field(default_factory=set)
    """ids that no item has had"""
    vectors: dict[str, bytes] = field(default_factory=dict)
    """of items that are to be found and were not, or looked different"""
    moved: list[str] = field(default_factory=list)
    """items in the index whose columns changed"""
    thumbnails: list[Row] = field(default_factory=list)
    parts: list[Row] = field(default_factory=list)
    problems: dict[str, Row] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    solved: list[str] = field(default_factory=list)
    """keys of files that could not be used before"""


class LibraryWriter:
    """Changes a library. Nothing counts, and no reader sees it, until ``commit`` has replaced the manifest."""

    def __init__(self, folder: Path, manifest: Manifest, name: str = MANIFEST) -> None:
        """Args:
        manifest: the last that was committed; what was written after it is undone.
        name: of the manifest's file.
        """
        self.folder, self.manifest, self.name = folder, manifest, name
        self.inside = folder / str(manifest.generation)
        self.tables = Tables.write(self.inside / "tables", manifest.versions)
        self.kinds = dict(columns.OWN) | dict(manifest.kinds)
        self.images, self.captions = open_indexes(self.inside, manifest, writing=True)
        self.pending = PendingChanges(self.inside, manifest)
        self.pending.undo(self.images, self._present)
        self.written: set[str] = set()
        """ids of items of which something was written by this writer"""
        self.lacking: list[str] = []
        """keys of rows taken in last that have no encodings, and nowhere to take them from"""

    def _present(self, ids: Sequence[str]) -> set[str]:
        found = self.tables.take("items", ids, ["id", "state"]).to_pylist()
        return {row["id"] for row in found if row["state"] == "present"}

    def take_in(
        self, rows: Sequence[Row], entries: Mapping[str, ScannedPicture], source: PictureSource, state: LibraryState
    ) -> Counter[str]:
        """Write the worker's rows and commit; gives what became of them."""
        resolved = [(row, state.resolve(row)) for row in rows]
        wanted = {r.like or r.id for _, r in resolved if r.outcome not in ("added", "lacking") and (r.like or r.id)}
        old = {row["id"]: row for row in self.tables.take("items", sorted(wanted)).to_pylist()}
        adding = PendingRows()
        for row, found in resolved:
            self._sort_in(row, found, entries[row["key"]], source, state, old, adding)
        self._copy_encodings(resolved, old, adding)
        self._write(adding, state.number)
        self.commit()
        self._note(resolved, adding, state)
        self.lacking = [row["key"] for row, found in resolved if found.outcome == "lacking"]
        return Counter(found.outcome for _, found in resolved)

    def _sort_in(
        self,
        row: Row,
        found: Change,
        entry: ScannedPicture,
        source: PictureSource,
        state: LibraryState,
        old: Rows,
        adding: PendingRows,
    ) -> None:
        if found.outcome == "lacking":
            return
        if found.outcome in ("problem", "forgotten"):
            if found.outcome == "problem":
                adding.problems[row["key"]] = row
            if found.id:
                adding.gone.add(found.id)
            return
        seen = old[found.like or found.id] if row.get("vector") is None else row
        if found.outcome in ("moved", "touched", "returned"):
            seen = {**old[found.id]}
        made = item_row(found.id, entry, state.number, source.about(entry), {**seen, "hash": row["hash"]}, self.kinds)
        adding.items[found.id] = made
        adding.new |= {found.id} if found.outcome in ("added", "copied") else set()
        adding.solved += [row["key"]] if row["key"] in state.problems else []
        if found.outcome in ("added", "changed", "copied") and row.get("vector") is not None:
            adding.vectors[found.id] = row["vector"]
            adding.thumbnails += [{"id": found.id, "jpeg": row["jpeg"]}] if row.get("jpeg") else []
            if row.get("rerank") is not None:
                parts = {name: row[name] for name in ("parts", "count", "mask")}
                adding.parts.append({"id": found.id, "vector": row["rerank"], **parts})
        elif found.outcome in ("moved", "touched") and old[found.id]["state"] == "present":
            adding.moved.append(found.id)

    def _copy_encodings(self, resolved: Sequence[tuple[Row, Change]], old: Rows, adding: PendingRows) -> None:
        """Items with a content that was encoded before, or that come back, take what is there."""
        like = {r.id: r.like for _, r in resolved if r.like is not None}
        back = [r.id for _, r in resolved if r.outcome in ("returned", "moved") and old[r.id]["state"] != "present"]
        vectors = self._vectors(sorted({*like.values(), *back}), old)
        adding.vectors |= {id: vectors[other] for id, other in like.items()} | {id: vectors[id] for id in back}
        for name, target in (("thumbnails", adding.thumbnails), ("parts", adding.parts)):
            rows = {row["id"]: row for row in self.tables.take(name, sorted(set(like.values()))).to_pylist()}
            target += [{**rows[other], "id": id} for id, other in like.items() if other in rows]

    def _vectors(self, ids: Sequence[str], old: Rows) -> dict[str, bytes]:
        """From the index, or from the shelf for items that are gone."""
        there = [id for id in ids if old[id]["state"] == "present"]
        away = [id for id in ids if old[id]["state"] != "present"]
        found = {row["id"]: row["vector"] for row in self.tables.take("shelf", away).to_pylist()}
        if there:
            found |= {id: v.tobytes() for id, v in zip(there, self.images.vectors(there), strict=True)}
        return found

    def _write(self, adding: PendingRows, number: int) -> None:
        ids = list(adding.vectors)
        self.pending.note([*ids, *adding.gone])
        tables = {"thumbnails": adding.thumbnails, "parts": adding.parts, "items": list(adding.items.values())}
        # Each is a table of its own, and none counts before the commit: they need not wait for one another.
        with ThreadPoolExecutor() as pool:
            writing = [pool.submit(self.tables.put, name, rows, adding.new) for name, rows in tables.items()]
            self._write_vectors(ids, adding)
            for done in writing:
                done.result()
        self.written |= adding.items.keys()
        if self.tables.count("shelf"):
            self.tables.drop("shelf", ids)
        self.drop_problems(number, adding.solved)
        self.put_problems(number, adding.problems)
        self.mark_gone(sorted(adding.gone))

    def _write_vectors(self, ids: Sequence[str], adding: PendingRows) -> None:
        if ids:
            stacked = np.stack([np.frombuffer(adding.vectors[id], dtype=np.float32) for id in ids])
            self.images.add(ids, stacked, self._columns(adding.items[id] for id in ids))
        if moved := [id for id in adding.moved if id not in adding.vectors]:
            self.images.update(moved, self._columns(adding.items[id] for id in moved))

    def _columns(self, rows: Iterable[Row]) -> Any:
        roots = {source.number: source.root for source in self.manifest.sources}
        return columns.table_of([columns.row_of(row, roots[row["source"]]) for row in rows], self.kinds)

    def _note(self, resolved: Sequence[tuple[Row, Change]], adding: PendingRows, state: LibraryState) -> None:
        """Keep the state in memory true."""
        for row, found in resolved:
            made = adding.items.get(found.id)
            before = state.items.get(row["key"])
            if made is not None:
                if before is not None and before.hash != made["hash"] and state.by_hash.get(before.hash) == found.id:
                    del state.by_hash[before.hash]
                state.by_hash.setdefault(made["hash"], found.id)
                stamp = made["bytes"], made["mtime"]
                state.items[row["key"]] = KnownItem(found.id, *stamp, made["hash"], True, made["digest"])
            elif before is not None and found.id in adding.gone:
                state.items[row["key"]] = before._replace(present=False)

    def describe_again(self, entries: Sequence[ScannedPicture], source: PictureSource, state: LibraryState) -> None:
        """Take over what a source now says of pictures that did not change."""
        by_id = {state.items[entry.key].id: entry for entry in entries}
        rows = [
            described_again(row, by_id[row["id"]], source.about(by_id[row["id"]]), self.kinds)
            for row in self.tables.take("items", list(by_id)).to_pylist()
        ]
        self.tables.put("items", rows)
        self.images.update([row["id"] for row in rows], self._columns(rows))
        self.written |= by_id.keys()

    def mark_gone(self, ids: Sequence[str]) -> None:
        """Take items out of the search and put their vectors on the shelf."""
        rows = [row for row in self.tables.take("items", ids).to_pylist() if row["state"] == "present"]
        if rows:
            there = [row["id"] for row in rows]
            kept: NDArray[np.float32] = self.images.vectors(there)
            self.tables.put("shelf", [{"id": id, "vector": v.tobytes()} for id, v in zip(there, kept, strict=True)])
            self.tables.put("items", [{**row, "state": "gone"} for row in rows])
            self.pending.remove(self.images, there)

    def put_problems(self, number: int, problems: Mapping[str, Row]) -> None:
        """Remember files that could not be used; rows give ``problem`` and, if known, ``bytes`` and ``mtime``."""
        rows = [
            {"id": f"{number}/{key}", "source": number, "key": key, "reason": row["problem"]}
            | {"bytes": row.get("bytes", -1), "mtime": row.get("mtime", -1)}
            for key, row in problems.items()
        ]
        self.tables.put("problems", rows)

    def drop_problems(self, number: int, keys: Iterable[str]) -> None:
        """Forget problems of files that are fine now, or gone."""
        self.tables.drop("problems", [f"{number}/{key}" for key in keys])

    def commit(self) -> None:
        """Make everything written so far count."""
        counts = {
            "items": self.tables.count("items", "state = 'present'"),
            "gone": self.tables.count("items", "state != 'present'"),
            **{name: self.tables.count(name) for name in ("captions", "problems")},
        }
        now, before = time.time(), self.manifest
        earlier = [(until, versions) for until, versions in before.earlier if until > now]
        if before.versions:
            earlier.append((now + GRACE, before.versions))
        self.manifest = replace(
            before, versions=self.versions(), earlier=tuple(earlier), counts=counts, kinds=dict(self.kinds)
        )
        write_manifest(self.folder, self.manifest, self.name)
        self.pending.done(self.images)

    def versions(self) -> dict[str, int]:
        """Where all tables stand."""
        found = self.tables.versions()
        for name, index in zip(INDEXES, (self.images, self.captions), strict=True):
            if index.version is not None:
                found[name] = index.version
        return found

    def add_source(self, root: Path, kind: Any) -> SourceRecord:
        """The source at a folder, new or known; counts with the next commit."""
        self.manifest, source = self.manifest.with_source(root, kind)
        return source

    def settle(self, track: Track = silent, *, at_once: bool = False) -> None:
        """Tidy up, commit, and delete versions that no reader can want any more.

        Args:
            at_once: leave nothing of what was deleted for readers that have not looked again.
        """
        self.tables.settle()
        for index in (self.images, self.captions):
            index.settle(track)
        self.commit()
        if at_once:
            self.manifest = replace(self.manifest, earlier=())
            write_manifest(self.folder, self.manifest, self.name)
        read = [versions for until, versions in self.manifest.earlier if until > time.time()]
        wanted = [*read, self.manifest.versions]
        oldest = {name: min(v[name] for v in wanted) for name in self.manifest.versions}
        self.tables.clean(oldest)
        for name, index in zip(INDEXES, (self.images, self.captions), strict=True):
            index.clean(oldest.get(name))

    def store_scales(self, encoder: QueryEncoder, reranker: QueryEncoder | None) -> None:
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
    """Delete a folder that no manifest names; readers of it have had their time."""
    import shutil

    if os.path.isdir(folder):
        shutil.rmtree(folder, ignore_errors=True)
