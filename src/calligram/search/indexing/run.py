"""Indexing a source into a library: compare, encode what is new, commit as it goes."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from calligram.data.readers.folder import PREFERRED_TABLE_NAMES, captions_tables
from calligram.errors import UserError
from calligram.files import locked
from calligram.progress import Track, silent
from calligram.search.indexing.captions import take_captions
from calligram.search.indexing.diff import LibraryState, ScanChanges, compare
from calligram.search.indexing.encode import Row
from calligram.search.indexing.open_writer import Opened, open_for_writing, refuse_strangers
from calligram.search.indexing.shards import Shard, gathered, make_worker, remove_staged, stage, staged_rows
from calligram.search.indexing.sources import CollectionSource, FolderScan, FolderSource, open_source
from calligram.search.indexing.writer import LibraryWriter
from calligram.search.library.manifest import MANIFEST, read_manifest
from calligram.search.library.matchers import LibraryMatchers

log = logging.getLogger(__name__)

COMMIT_ROWS = 4096
COMMIT_SECONDS = 20.0
"""a commit is due after so many pictures or so long: what a kill can cost"""
NOTHING_NEW = frozenset(("unchanged", "still bad", "forgotten"))


@dataclass(frozen=True)
class IndexReport:
    """What an indexing run did."""

    counts: Counter[str]
    seconds: float
    library: dict[str, int] = field(default_factory=dict)
    """items, captions, gone and problems of the whole library"""


def index_source(
    models: LibraryMatchers,
    source: Path,
    out: Path,
    *,
    engine: str | None = None,
    again: bool = False,
    rebuild: bool = False,
    device: torch.device | str = "cpu",
    track: Track = silent,
) -> IndexReport:
    """Bring the library in ``out`` up to date with a source.

    Args:
        models: what encodes.
        source: a folder of pictures or a collection.
        out: folder of the library, new or there.
        engine: address of another engine for the vectors.
        again: also take what was forgotten.
        rebuild: encode everything anew, for another matcher; the old library serves until that is done.
        device: where pictures are encoded.
        track: told how far it has come.
    """
    began = time.perf_counter()
    opened = open_source(source)
    check_readable(models, opened)
    refuse_strangers(out)
    _tell_of_captions(opened)
    with locked(out, "library"):
        preparing = open_for_writing(out, models, source, engine, rebuild=rebuild)
        counts: Counter[str] = Counter()
        for pictures in preparing.sources(opened):
            counts.update(IndexingRun(preparing.writer, models, pictures, device, track).run(again=again))
        changed = any(n and name not in NOTHING_NEW for name, n in counts.items())
        preparing.finish(models, device, track, changed=changed)
        library = dict(preparing.writer.manifest.counts)
        remove_staged(out, opened)
    return IndexReport(counts, time.perf_counter() - began, library)


def _tell_of_captions(source: Opened) -> None:
    """That those in a table beside pictures are not read."""
    tables = captions_tables(source.root) if isinstance(source, FolderSource) else []
    if tables and tables[0].stem.lower() in PREFERRED_TABLE_NAMES:
        log.warning(
            '%s is not read: index takes pictures alone; "calligram import folder %s COLLECTION" makes a collection, '
            "which is indexed with its captions and columns",
            tables[0].name,
            source.root,
        )


def stage_source(
    models: LibraryMatchers,
    source: Path,
    out: Path,
    shard: Shard,
    *,
    rebuild: bool = False,
    device: torch.device | str = "cpu",
    track: Track = silent,
) -> int:
    """Encode one share of a source into the library's staging folder; gives how many pictures that were.

    Args:
        rebuild: of the whole source, for ``index_source`` to rebuild the library with; else of what it lacks.
    """
    opened = open_source(source)
    check_readable(models, opened)
    refuse_strangers(out)
    if not rebuild and (out / MANIFEST).is_file():
        models.check(read_manifest(out), out, source)
    return stage(models, opened, out, shard, rebuild=rebuild, device=device, track=track)


def check_readable(models: LibraryMatchers, source: Opened) -> None:
    """Refuse files for a matcher that reads stored features."""
    for stored in (models.matcher, models.reranker):
        name = getattr(stored.inputs.images, "name", None) if stored and stored.inputs.images.kind == "stored" else None
        if name is not None and isinstance(source, FolderSource):
            raise UserError(
                f"matcher {stored.source if stored else ''} reads the stored features '{name}', and picture files have "
                "none; index the collection that has them, or use a matcher trained on pixels"
            )


@dataclass
class IndexingRun:
    """One source on its way into a library."""

    writer: LibraryWriter
    models: LibraryMatchers
    source: Opened
    device: torch.device | str
    track: Track

    def run(self, *, again: bool) -> Counter[str]:
        """Do all of it; gives what became of how many pictures."""
        kind = "collection" if isinstance(self.source, CollectionSource) else "folder"
        number = self.writer.add_source(self.source.root, kind).number
        if again:
            forget_forgetting(self.writer, number)
        state, scan = LibraryState.load(self.writer.tables, number), self.source.scan()
        changes = compare(scan, state, self.source)
        counts = changes.counts + self._take_in(changes, state)
        if changes.described:
            self.writer.describe_again(changes.described, self.source, state)
            counts["described"] += len(changes.described)
        counts.update(self._mark_gone(state))
        counts.update(self._note_problems(scan, state))
        counts.update(
            take_captions(self.writer, self.models.matcher, self.source, state, self.writer.written, self.track)
        )
        return counts

    def _take_in(self, changes: ScanChanges, state: LibraryState) -> Counter[str]:
        """Encode and commit what is new or different."""
        entries = {entry.key: entry for entry in changes.todo}
        counts: Counter[str] = Counter()
        again: list[str] = []
        for rows in gathered(self._worked(changes, state), COMMIT_ROWS, COMMIT_SECONDS):
            counts += self.writer.take_in(rows, entries, self.source, state)
            again += self.writer.lacking
        if again:  # their content was known when they were looked at, and is no longer
            worker = make_worker(self.models, self.source, self.device)
            batches = worker.run([entries[key] for key in again], frozenset(), self.track)
            for rows in gathered(batches, COMMIT_ROWS, COMMIT_SECONDS):
                counts += self.writer.take_in(rows, entries, self.source, state)
        return Counter({name: n for name, n in counts.items() if name != "lacking"})

    def _worked(self, changes: ScanChanges, state: LibraryState) -> Iterator[list[Row]]:
        """What waits in the staging folder, then what is encoded here."""
        entries = {entry.key: entry for entry in changes.todo}
        for rows in staged_rows(self.writer.folder, self.source, self.models, entries):
            for row in rows:
                del entries[row["key"]]
            yield rows
        if entries:
            worker = make_worker(self.models, self.source, self.device)
            yield from worker.run(list(entries.values()), state, self.track)

    def _mark_gone(self, state: LibraryState) -> Counter[str]:
        ids = sorted(state.items[key].id for key in state.away)
        self.writer.mark_gone(ids)
        for key in state.away:
            state.items[key] = state.items[key]._replace(present=False)
        return Counter(gone=len(ids))

    def _note_problems(self, scan: FolderScan, state: LibraryState) -> Counter[str]:
        """Record what could not be looked at, and drop what is no longer there."""
        fresh = {key: {"problem": reason} for key, reason in scan.problems.items() if key not in state.problems}
        there = {entry.key for entry in scan.entries} | scan.problems.keys()
        solved = [key for key in state.problems if key not in there]
        self.writer.put_problems(state.number, fresh)
        self.writer.drop_problems(state.number, solved)
        return Counter({"problem": len(fresh), "solved": len(solved)})


def forget_forgetting(writer: LibraryWriter, number: int) -> None:
    """Let pictures of a source come back that were forgotten."""
    ids = [id for b in writer.tables.column("forgotten", ("id",), f"source = {number}") for id in b["id"].to_pylist()]
    writer.tables.drop("forgotten", ids)
