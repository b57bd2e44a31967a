"""Open a library for writing: a new one, an existing one, or a rebuilt one that replaces it."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from calligram.errors import UserError, command
from calligram.files import LOCK_FILE, move_file
from calligram.progress import Track
from calligram.search.indexing.encode import ImageEncoder
from calligram.search.indexing.shards import STAGING
from calligram.search.indexing.sources import CollectionSource, FolderSource, reopen
from calligram.search.indexing.writer import VERSION_GRACE_SECONDS, LibraryWriter, remove_folder
from calligram.search.library.manifest import MANIFEST, REBUILT, Manifest, read_manifest
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.library.tables import Tables, empty_indexes
from calligram.search.query.encoder import query_encoders

Source = CollectionSource | FolderSource


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
        if changed or self.manifest_changed or not writer.manifest.versions:
            writer.commit()
            writer.optimize(track)
            writer.store_scales(*query_encoders(models.matcher, models.reranker, device))
        if writer.name == REBUILT:
            if self.replaced is not None:
                os.utime(writer.folder / str(self.replaced.generation))  # when it was replaced; see _remove_leftovers
            move_file(writer.folder / REBUILT, writer.folder / MANIFEST)
            writer.name = MANIFEST
            if self.replaced is not None:
                empty_indexes(writer.folder / str(self.replaced.generation), self.replaced)


def open_for_writing(
    out: Path, models: LibraryMatchers, source: Path, engine: str | None, *, rebuild: bool
) -> OpenedWriter:
    """A writer for the library in ``out``; the caller holds its lock."""
    before = _previous_manifest(out, rebuild=rebuild)
    if before is None:
        return OpenedWriter(LibraryWriter(out, _fresh(models, engine, _next_generation(out))))
    others = _other_sources(out, before, source.resolve()) if rebuild else []
    _remove_leftovers(out, before)
    if rebuild:
        return OpenedWriter(_replacement(out, before, models, engine), before, other_sources=others)
    models.check(before, out, source)
    if engine is not None and engine != before.index:
        raise UserError(f"the vectors of {out} are in {before.index or 'its own folder'}; add --rebuild to move them")
    given = {name: model for name, model in models.records().items() if model is not None}
    now = replace(before, **given)  # type: ignore[arg-type]
    return OpenedWriter(LibraryWriter(out, now), manifest_changed=now != before)


def _other_sources(out: Path, before: Manifest, given: Path) -> list[Source]:
    """The library's other sources that it has pictures of.

    Raises:
        UserError: when one cannot be opened, because its pictures would be lost.
    """
    tables, found = Tables.open(out / str(before.generation) / "tables", before.versions), []
    for source in before.sources:
        if source.root == str(given) or not tables.count("items", f"source = {source.number}"):
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
    dim = ImageEncoder(models.matcher).dim()
    label = secrets.token_hex(4)
    return Manifest(dim=dim, generation=generation, index=engine, label=label, **named)  # type: ignore[arg-type]


def _replacement(out: Path, before: Manifest, models: LibraryMatchers, engine: str | None) -> LibraryWriter:
    """Continue an interrupted rebuild, or start one."""
    fresh = replace(_fresh(models, engine, before.generation + 1), sources=before.sources)
    if fresh.localizer is None:  # nothing stored depends on it, so keep it
        fresh = replace(fresh, localizer=before.localizer)
    if (out / REBUILT).is_file():
        begun = read_manifest(out, REBUILT, writing=True)
        same = ("matcher", "reranker", "localizer", "generation", "index")
        if all(getattr(begun, name) == getattr(fresh, name) for name in same):
            return LibraryWriter(out, begun, REBUILT)
        empty_indexes(out / str(begun.generation), begun)
        (out / REBUILT).unlink()
    remove_folder(out / str(fresh.generation))
    writer = LibraryWriter(out, fresh, REBUILT)
    old = Tables.open(out / str(before.generation) / "tables", before.versions)
    for batch in old.column("forgotten", ("id", "source", "bytes", "mtime", "hash")):
        writer.tables.add("forgotten", batch.to_pylist())
    writer.commit()
    return writer


def refuse_other_folder(out: Path) -> None:
    """Refuse a folder that contains something other than a library, before anything is written there."""
    if not out.exists() or (out / MANIFEST).is_file():
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file; --out takes the folder of a library")
    ours = {LOCK_FILE, STAGING, MANIFEST, REBUILT, f".{MANIFEST}.partial"}
    others = [p.name for p in out.iterdir() if p.name not in ours and not re.fullmatch(r"\d+", p.name)]
    if others:
        raise UserError(f"{out} exists and is not a library (it has {others[0]}); choose another --out")


def _next_generation(out: Path) -> int:
    """The first generation, after deleting the folders of a run that was killed before its first commit."""
    for folder in out.iterdir():
        if re.fullmatch(r"\d+", folder.name):
            remove_folder(folder)
    return 1


def _remove_leftovers(out: Path, manifest: Manifest) -> None:
    """Delete the folders of replaced generations, after the time in which a reader may still have them open."""
    keep = {manifest.generation}
    if (out / REBUILT).is_file():
        keep.add(manifest.generation + 1)
    for folder in out.iterdir():
        if not re.fullmatch(r"\d+", folder.name) or int(folder.name) in keep:
            continue
        if int(folder.name) > manifest.generation or time.time() - folder.stat().st_mtime > VERSION_GRACE_SECONDS:
            remove_folder(folder)
