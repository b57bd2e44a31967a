"""Index a source into a library: scan it, decide what changed, encode what is new, and commit in steps."""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from calligram.device import device_named, use_half_networks
from calligram.errors import STAGING, UserError, command
from calligram.files import lock_folder, move_file
from calligram.memory import return_freed_memory
from calligram.progress import Track, silent
from calligram.search.filters.columns import PLACE_COLUMN, TEXT_COLUMN, wanted_columns
from calligram.search.indexing.captions import take_captions
from calligram.search.indexing.diff import (
    Change,
    LibraryState,
    diff,
    drop_forgotten,
    forgotten_rows,
    pictures_to_encode,
)
from calligram.search.indexing.encode import (
    NetworkPrecision,
    PictureEncoder,
    Row,
    refuse_unknown_precision,
    row_batches,
    wants_half_networks,
)
from calligram.search.indexing.shards import remove_staged, staged_rows
from calligram.search.indexing.sources import (
    CollectionSource,
    ScannedPicture,
    Source,
    check_readable,
    open_source,
    reopen,
    warn_of_captions_table,
)
from calligram.search.indexing.writer import VERSION_GRACE_SECONDS, LibraryWriter, remove_folder
from calligram.search.library.manifest import (
    MANIFEST,
    REBUILT,
    Manifest,
    check_address,
    read_manifest,
    refuse_other_folder,
    same_address,
)
from calligram.search.library.matchers import LibraryMatchers, MatcherEncoder
from calligram.search.library.tables import empty_indexes, old_batches

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


def index(
    run: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    reranker: str | os.PathLike[str] | None = None,
    localizer: str | os.PathLike[str] | None = None,
    index: str | None = None,
    again: bool = False,
    rebuild: bool = False,
    read_text: bool | None = None,
    towns: bool | None = None,
    device: torch.device | str = "auto",
    precision: NetworkPrecision | None = None,
    track: Track = silent,
) -> IndexReport:
    """Put pictures into the library in ``out``, or bring it up to date.

    Args:
        run: a run, its folder, or folder or hub name of a dual encoder of ``transformers``.
        source: a folder of pictures or a collection.
        out: folder of the library; it is made where it does not exist.
        reranker: a run whose score orders the candidates again; "none" for no second stage.
        localizer: a run that localizes phrases in pictures.
        index: address of a Milvus server that stores the vectors instead of the library.
        again: also index pictures that were forgotten.
        rebuild: encode everything again, for another matcher.
        read_text: also find text inside pictures; by default if the library has it.
        towns: also name the nearest town of each position; by default if the library has it.
        device: where pictures are encoded.
        precision: of transformers, see ``NetworkPrecision``; by default as before, and ``auto`` for a new library.
        track: shows progress.
    """
    device = device_named(device) if isinstance(device, str) else device
    models = LibraryMatchers.load(run, reranker, localizer, None if rebuild else Path(out))
    added = {TEXT_COLUMN: read_text, PLACE_COLUMN: towns}
    how: Any = {"engine": index, "again": again, "rebuild": rebuild, "device": device, "precision": precision}
    return index_source(models, Path(source), Path(out), added=added, track=track, **how)


def index_source(
    models: LibraryMatchers,
    source: Path,
    out: Path,
    *,
    engine: str | None = None,
    again: bool = False,
    rebuild: bool = False,
    added: Mapping[str, bool | None] = MappingProxyType({}),
    device: torch.device | str = "cpu",
    precision: NetworkPrecision | None = None,
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
        added: whether to compute columns of ``added_columns``, by name; by default the columns of the library.
        device: where pictures are encoded.
        precision: of transformers, see ``NetworkPrecision``; by default as before, and ``auto`` for a new library.
        track: shows progress.
    """
    start = time.perf_counter()
    refuse_unknown_precision(precision)
    opened = open_source(source)
    check_readable(models, opened)
    refuse_other_folder(out)
    warn_of_captions_table(opened)
    with lock_folder(out, "library"), ExitStack() as stack:
        writing = open_for_writing(out, models, source, engine, rebuild=rebuild, precision=precision)
        stack.enter_context(use_half_networks(wants_half_networks(precision, writing.writer.manifest.precisions)))
        counts: Counter[str] = Counter()
        wanted = wanted_columns(added, (writing.replaced or writing.writer.manifest).kinds)
        for each in writing.sources(opened):
            counts.update(IndexingRun(writing.writer, models, each, device, track, wanted).run(again=again))
        changed = any(count and name not in COUNTS_WITHOUT_CHANGE for name, count in counts.items())
        writing.finish(models, device, track, changed=changed)
        library = dict(writing.writer.manifest.counts)
        if (out / STAGING).exists():
            remove_staged(out, opened)
    return_freed_memory()
    return IndexReport(counts, time.perf_counter() - start, library)


@dataclass
class IndexingRun:
    """Brings a library up to date with one source."""

    writer: LibraryWriter
    models: LibraryMatchers
    source: Source
    device: torch.device | str
    track: Track
    added: Sequence[str] = ()

    def run(self, *, again: bool) -> Counter[str]:
        """Index the source; returns the number of pictures for each outcome.

        Args:
            again: also index pictures that were forgotten.
        """
        kind = "collection" if isinstance(self.source, CollectionSource) else "folder"
        number = self.writer.add_source(self.source.root, kind).number
        if again:
            drop_forgotten(self.writer.tables, number)
        state = LibraryState.load(self.writer.tables, number)
        scan = self.source.scan()
        changes = diff(scan, state)
        state.set_missing(changes)
        counts = self._add_pictures(pictures_to_encode(changes), state)
        counts.update(self._apply(changes, state))
        for column in self.added:
            from calligram.search.indexing.added_columns import add_column

            counts[column] = add_column(self.writer, number, self.source, scan.entries, column, self.track)
        encoder = MatcherEncoder(self.models.matcher, self.device)
        counts.update(take_captions(self.writer, encoder, self.source, state, self.writer.written, self.track))
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
            encoded = encoder.run([by_key[key] for key in encode_again], frozenset(), self.track)
            for rows in row_batches(encoded, COMMIT_ROWS, COMMIT_SECONDS):
                counts += self.writer.add_rows(rows, by_key, self.source, state)
        return Counter({name: count for name, count in counts.items() if name != "not encoded"})

    def _encoded(self, pictures: Mapping[str, ScannedPicture], state: LibraryState) -> Iterator[Row]:
        """Rows from the staging folder, then rows that are encoded now."""
        left = dict(pictures)
        if (self.writer.folder / STAGING).exists():
            for row in staged_rows(self.writer.folder, self.source, self.models, pictures):
                del left[row["key"]]
                yield row
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


@dataclass
class OpenedWriter:
    """A writer, and what the indexing run must do with it."""

    writer: LibraryWriter
    replaced: Manifest | None = None
    """of the library that is to be replaced"""
    manifest_changed: bool = False
    """the manifest names other matchers than before, so a commit is needed without any other change"""
    other_sources: Sequence[Source] = ()
    """the library's other sources, when it is rebuilt"""

    def sources(self, given: Source) -> list[Source]:
        """The source to index, after the library's other sources when it is rebuilt."""
        return [*(source for source in self.other_sources if source.root != given.root), given]

    def finish(self, models: LibraryMatchers, device: torch.device | str, track: Track, *, changed: bool) -> None:
        """Commit, compact the tables and measure the score scales; a rebuilt library replaces the old one."""
        writer = self.writer
        if changed or self.manifest_changed or writer.unfinished or not writer.manifest.versions:
            writer.commit()
            writer.optimize(track)
            writer.store_scales(*models.encoders(device))
        if writer.name == REBUILT:
            if self.replaced is not None:  # its folder has the time of this now; see remove_library_leftovers
                os.utime(writer.folder / str(self.replaced.generation))
            move_file(writer.folder / REBUILT, writer.folder / MANIFEST)
            writer.name = MANIFEST
            if self.replaced is not None:
                empty_indexes(writer.folder / str(self.replaced.generation), self.replaced, writer.manifest.index)


def open_for_writing(
    out: Path,
    models: LibraryMatchers,
    source: Path,
    engine: str | None,
    *,
    rebuild: bool,
    precision: NetworkPrecision | None,
) -> OpenedWriter:
    """A writer for the library in ``out``; the caller holds its lock."""
    before = _previous_manifest(out, rebuild=rebuild)
    if before is None:
        return OpenedWriter(LibraryWriter(out, _fresh(models, engine, _next_generation(out))))
    others = _other_sources(out, before, source.resolve()) if rebuild else []
    remove_library_leftovers(out, before)
    if rebuild:
        return OpenedWriter(_replacement(out, before, models, engine, precision), before, other_sources=others)
    models.check(before, out, source)
    if engine is not None and not same_address(engine, before.index):
        raise UserError(f"the vectors of {out} are in {before.index or 'its own folder'}; add --rebuild to move them")
    check_address(out, before, engine)
    if precision == "fp32" and "bf16" in before.precisions:
        log.warning("%s has vectors that were computed in bf16; add --rebuild to compute all in fp32", out)
    given = {name: model for name, model in models.records().items() if model is not None}
    now = replace(before, **given)  # type: ignore[arg-type]
    return OpenedWriter(LibraryWriter(out, now), manifest_changed=now != before)


def _other_sources(out: Path, before: Manifest, given: Path) -> list[Source]:
    """The library's other sources that it has pictures of.

    Raises:
        UserError: when one cannot be opened, because its pictures would be lost.
    """
    found: list[Source] = []
    for source in before.sources:
        rows = old_batches(out, before, "items", ("id",), f"source = {source.number}")
        if source.root == str(given) or (rows is not None and not any(len(batch) for batch in rows)):
            continue
        try:
            found.append(reopen(source))
        except UserError as error:
            raise UserError(
                f"{out} also holds pictures of {source.root}, which cannot be opened ({error}); restore it, or "
                f"remove them with {command('calligram', 'forget', out, source.root)}, and rebuild then"
            ) from error
    return found


def _previous_manifest(out: Path, *, rebuild: bool) -> Manifest | None:
    if not (out / MANIFEST).is_file():
        return None
    try:
        return read_manifest(out, writing=True)
    except UserError:
        if rebuild:  # it cannot be read, and need not be
            return None
        raise


def _fresh(models: LibraryMatchers, engine: str | None, generation: int) -> Manifest:
    named = models.records()
    dim = MatcherEncoder(models.matcher).text_vectors(["a"]).shape[1]
    label = secrets.token_hex(4)
    return Manifest(dim=dim, generation=generation, index=engine, label=label, **named)  # type: ignore[arg-type]


def _replacement(
    out: Path, before: Manifest, models: LibraryMatchers, engine: str | None, precision: NetworkPrecision | None
) -> LibraryWriter:
    """Continue an interrupted rebuild, or start one."""
    fresh = replace(_fresh(models, engine, before.generation + 1), sources=before.sources)
    if fresh.localizer is None:  # nothing stored depends on it, so keep it
        fresh = replace(fresh, localizer=before.localizer)
    if (out / REBUILT).is_file():
        begun = read_manifest(out, REBUILT, writing=True)
        same = ("matcher", "reranker", "localizer", "generation", "index")
        coarser = precision == "fp32" and "bf16" in begun.precisions
        if not coarser and all(getattr(begun, name) == getattr(fresh, name) for name in same):
            return LibraryWriter(out, begun, REBUILT)
        empty_indexes(out / str(begun.generation), begun, engine)
        (out / REBUILT).unlink()
    remove_folder(out / str(fresh.generation))
    writer = LibraryWriter(out, fresh, REBUILT)
    writer.tables.add("forgotten", forgotten_rows(out, before))
    writer.commit()
    return writer


def _next_generation(out: Path) -> int:
    """The first generation, after deleting the folders of a run that was killed before its first commit."""
    for folder in (folder for folder in out.iterdir() if re.fullmatch(r"\d+", folder.name)):
        remove_folder(folder)
    return 1


def remove_library_leftovers(out: Path, manifest: Manifest) -> None:
    """Delete files of killed processes, and folders of replaced generations when no reader can have them open."""
    keep = {manifest.generation, *([manifest.generation + 1] if (out / REBUILT).is_file() else [])}
    for partial in (*out.glob(".*.partial"), *out.glob("*/.*.partial")):
        partial.unlink(missing_ok=True)
    for folder in out.iterdir():
        if not re.fullmatch(r"\d+", folder.name) or int(folder.name) in keep:
            continue
        if int(folder.name) > manifest.generation or time.time() - folder.stat().st_mtime > VERSION_GRACE_SECONDS:
            remove_folder(folder)
