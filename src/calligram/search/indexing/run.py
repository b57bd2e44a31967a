"""Index a source into a library: scan it, decide what changed, encode what is new, and commit in steps."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from calligram.data.readers.folder import PREFERRED_TABLE_NAMES, captions_tables
from calligram.errors import UserError
from calligram.files import lock_folder
from calligram.progress import Track, silent
from calligram.search.indexing.captions import take_captions
from calligram.search.indexing.diff import Change, LibraryState, diff, pictures_to_encode
from calligram.search.indexing.encode import PictureEncoder, Row, row_batches
from calligram.search.indexing.open_writer import Source, open_for_writing, refuse_other_folder
from calligram.search.indexing.shards import STAGING, Shard, remove_staged, stage, staged_rows
from calligram.search.indexing.sources import CollectionSource, FolderSource, ScannedPicture, open_source
from calligram.search.indexing.writer import LibraryWriter
from calligram.search.library.manifest import MANIFEST, read_manifest
from calligram.search.library.matchers import LibraryMatchers

log = logging.getLogger(__name__)

COMMIT_ROWS = 4096
COMMIT_SECONDS = 20.0
"""a commit follows after so many pictures or so much time; a kill loses at most the work since the last one"""
COUNTS_WITHOUT_CHANGE = frozenset(("unchanged", "still bad", "forgotten"))


@dataclass(frozen=True)
class IndexReport:
    """What an indexing run did."""

    counts: Counter[str]
    """pictures for each outcome"""
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
        models: the matchers that encode.
        source: a folder of pictures or a collection.
        out: folder of the library; it is made where it does not exist.
        engine: address of another engine for the vectors.
        again: also index pictures that were forgotten.
        rebuild: encode everything again, for another matcher; the old library can be searched until that is done.
        device: where pictures are encoded.
        track: shows progress.
    """
    start = time.perf_counter()
    opened = open_source(source)
    check_readable(models, opened)
    refuse_other_folder(out)
    _warn_of_captions_table(opened)
    with lock_folder(out, "library"):
        writing = open_for_writing(out, models, source, engine, rebuild=rebuild)
        counts: Counter[str] = Counter()
        for each in writing.sources(opened):
            counts.update(IndexingRun(writing.writer, models, each, device, track).run(again=again))
        changed = any(count and name not in COUNTS_WITHOUT_CHANGE for name, count in counts.items())
        writing.finish(models, device, track, changed=changed)
        library = dict(writing.writer.manifest.counts)
        if (out / STAGING).exists():
            remove_staged(out, opened)
    return IndexReport(counts, time.perf_counter() - start, library)


def _warn_of_captions_table(source: Source) -> None:
    """Warn that a table of captions in a folder of pictures is not read."""
    tables = captions_tables(source.root) if isinstance(source, FolderSource) else []
    if tables and tables[0].stem.lower() in PREFERRED_TABLE_NAMES:
        log.warning(
            '%s is not read: index reads only the pictures of a folder; "calligram import folder %s COLLECTION" makes '
            "a collection, which is indexed with its captions and columns",
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
    """Encode one shard of a source into the library's staging folder; returns the number of pictures encoded.

    Args:
        models: the matchers that encode.
        source: a folder of pictures or a collection.
        out: folder of the library.
        shard: which share of the pictures.
        rebuild: encode the whole source, for ``index_source`` with ``rebuild``; else what the library lacks.
        device: where pictures are encoded.
        track: shows progress.
    """
    opened = open_source(source)
    check_readable(models, opened)
    refuse_other_folder(out)
    if not rebuild and (out / MANIFEST).is_file():
        models.check(read_manifest(out), out, source)
    return stage(models, opened, out, shard, rebuild=rebuild, device=device, track=track)


def check_readable(models: LibraryMatchers, source: Source) -> None:
    """Refuse a folder of pictures for a matcher that needs stored features."""
    for stored in (models.matcher, models.reranker):
        name = getattr(stored.inputs.images, "name", None) if stored and stored.inputs.images.kind == "stored" else None
        if name is not None and isinstance(source, FolderSource):
            raise UserError(
                f"matcher {stored.source if stored else ''} reads the stored features '{name}', and picture files have "
                "none; index the collection that has them, or use a matcher trained on pixels"
            )


@dataclass
class IndexingRun:
    """Brings a library up to date with one source."""

    writer: LibraryWriter
    models: LibraryMatchers
    source: Source
    device: torch.device | str
    track: Track

    def run(self, *, again: bool) -> Counter[str]:
        """Index the source; returns the number of pictures for each outcome.

        Args:
            again: also index pictures that were forgotten.
        """
        kind = "collection" if isinstance(self.source, CollectionSource) else "folder"
        number = self.writer.add_source(self.source.root, kind).number
        if again:
            drop_forgotten(self.writer, number)
        state = LibraryState.load(self.writer.tables, number)
        changes = diff(self.source.scan(), state)
        state.set_missing(changes)
        counts = self._add_pictures(pictures_to_encode(changes), state)
        counts.update(self._apply(changes, state))
        counts.update(
            take_captions(self.writer, self.models.matcher, self.source, state, self.writer.written, self.track)
        )
        return counts

    def _add_pictures(self, pictures: Sequence[ScannedPicture], state: LibraryState) -> Counter[str]:
        """Encode pictures and commit them in steps."""
        by_key = {picture.key: picture for picture in pictures}
        counts: Counter[str] = Counter()
        encode_again: list[str] = []
        for rows in row_batches(self._encoded(by_key, state), COMMIT_ROWS, COMMIT_SECONDS):
            counts += self.writer.add_rows(rows, by_key, self.source, state)
            encode_again += self.writer.not_encoded
        if encode_again:  # an item had their content when they were read, and has another one since
            encoder = PictureEncoder.of(self.models, self.source, self.device)
            batches = encoder.run([by_key[key] for key in encode_again], frozenset(), self.track)
            for rows in row_batches(batches, COMMIT_ROWS, COMMIT_SECONDS):
                counts += self.writer.add_rows(rows, by_key, self.source, state)
        return Counter({name: count for name, count in counts.items() if name != "not encoded"})

    def _encoded(self, pictures: Mapping[str, ScannedPicture], state: LibraryState) -> Iterator[list[Row]]:
        """Rows from the staging folder, then rows that are encoded now."""
        left = dict(pictures)
        if (self.writer.folder / STAGING).exists():
            for rows in staged_rows(self.writer.folder, self.source, self.models, pictures):
                for row in rows:
                    del left[row["key"]]
                yield rows
        if left:
            encoder = PictureEncoder.of(self.models, self.source, self.device)
            yield from encoder.run(list(left.values()), state, self.track)

    def _apply(self, changes: Sequence[Change], state: LibraryState) -> Counter[str]:
        """Write the changes that need no picture to be read: facts, items that are gone, problems."""
        counts = Counter(change.action for change in changes)
        described = [change.picture for change in changes if change.action == "described" and change.picture]
        if described:
            self.writer.update_facts(described, self.source, state)
        gone = state.record_gone()
        self.writer.mark_gone(gone)
        problems = {change.key: {"problem": change.reason} for change in changes if change.action == "problem"}
        self.writer.put_problems(state.number, problems)
        self.writer.drop_problems(state.number, [change.key for change in changes if change.action == "solved"])
        return Counter(
            {
                "unchanged": counts["unchanged"] + len(described),
                "gone": len(gone),
                **{name: counts[name] for name in ("described", "still bad", "forgotten", "problem", "solved")},
            }
        )


def drop_forgotten(writer: LibraryWriter, number: int) -> None:
    """Delete the list of forgotten pictures of a source, so that they are indexed again."""
    batches = writer.tables.column("forgotten", ("id",), f"source = {number}")
    writer.tables.drop("forgotten", [id for batch in batches for id in batch["id"].to_pylist()])
