"""Opening a library for writing: a new one, the one that is there, or one to take its place."""

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
from calligram.files import LOCK
from calligram.progress import Track
from calligram.search.indexing.encode import ImageEncoder
from calligram.search.indexing.shards import STAGING
from calligram.search.indexing.sources import CollectionSource, FolderSource, reopen
from calligram.search.indexing.writer import GRACE, LibraryWriter, remove_folder
from calligram.search.library.indexes import empty_indexes
from calligram.search.library.manifest import MANIFEST, REBUILT, Manifest, read_manifest
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.library.tables import Tables
from calligram.search.query.encoder import query_encoders

Opened = CollectionSource | FolderSource


@dataclass
class OpenedWriter:
    """A writer, and what is to be done with it."""

    writer: LibraryWriter
    before: Manifest | None = None
    """of the library that is to be replaced"""
    renewed: bool = False
    """the manifest names other models or places than before, which alone is worth a commit"""
    others: Sequence[Opened] = ()
    """the library's other sources, when it is rebuilt"""

    def sources(self, given: Opened) -> list[Opened]:
        """The source that was given, after the library's others when it is rebuilt."""
        return [*(source for source in self.others if source.root != given.root), given]

    def finish(self, models: LibraryMatchers, device: torch.device | str, track: Track, *, changed: bool) -> None:
        """Commit, compact the tables and measure the score scales; a rebuilt library replaces the old one."""
        writer = self.writer
        if changed or self.renewed or not writer.manifest.versions:
            writer.commit()
            writer.settle(track)
            writer.store_scales(*query_encoders(models.matcher, models.reranker, device))
        if writer.name == REBUILT:
            if self.before is not None:
                os.utime(writer.folder / str(self.before.generation))  # when it was replaced; see _remove_leftovers
            os.replace(writer.folder / REBUILT, writer.folder / MANIFEST)
            writer.name = MANIFEST
            if self.before is not None:
                empty_indexes(writer.folder / str(self.before.generation), self.before)


def open_for_writing(
    out: Path, models: LibraryMatchers, source: Path, engine: str | None, *, rebuild: bool
) -> OpenedWriter:
    """A writer for the library in ``out``; the caller holds its lock."""
    before = _before(out, rebuild=rebuild)
    if before is None:
        return OpenedWriter(LibraryWriter(out, _fresh(models, engine, _next_generation(out))))
    others = _others(out, before, source.resolve()) if rebuild else []
    _remove_leftovers(out, before)
    if rebuild:
        return OpenedWriter(_replacement(out, before, models, engine), before, others=others)
    models.check(before, out, source)
    if engine is not None and engine != before.index:
        raise UserError(f"the vectors of {out} are in {before.index or 'its own folder'}; add --rebuild to move them")
    given = {name: model for name, model in models.named().items() if model is not None}
    now = replace(before, **given)  # type: ignore[arg-type]
    return OpenedWriter(LibraryWriter(out, now), renewed=now != before)


def _others(out: Path, before: Manifest, given: Path) -> list[Opened]:
    """The library's other sources, as far as it holds pictures of them.

    Raises:
        UserError: when one is not there: its pictures would be lost.
    """
    tables, found = Tables.open(out / str(before.generation) / "tables", before.versions), []
    for source in before.sources:
        if source.root == str(given) or not tables.count("items", f"source = {source.number}"):
            continue
        try:
            found.append(reopen(source))
        except UserError as error:
            raise UserError(
                f"{out} also holds pictures of {source.root}, which cannot be opened ({error}); bring it back, or "
                f"leave them out with {command('calligram', 'forget', out, source.root)}, and rebuild then"
            ) from error
    return found


def _before(out: Path, *, rebuild: bool) -> Manifest | None:
    if not (out / MANIFEST).is_file():
        return None
    try:
        return read_manifest(out, writing=True)
    except UserError:
        if rebuild:  # it cannot be read, and need not be
            return None
        raise


def _fresh(models: LibraryMatchers, engine: str | None, generation: int) -> Manifest:
    named = models.named()
    dim = ImageEncoder(models.matcher).dim()
    label = secrets.token_hex(4)
    return Manifest(dim=dim, generation=generation, index=engine, label=label, **named)  # type: ignore[arg-type]


def _replacement(out: Path, before: Manifest, models: LibraryMatchers, engine: str | None) -> LibraryWriter:
    """Go on with a rebuild that was cut short, or begin one."""
    fresh = replace(_fresh(models, engine, before.generation + 1), sources=before.sources)
    if fresh.localizer is None:  # nothing that is stored depends on it, so it stays
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


def refuse_strangers(out: Path) -> None:
    """A folder with other things in it is nobody's library; asked before anything is written there."""
    if not out.exists() or (out / MANIFEST).is_file():
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file; --out takes the folder of a library")
    ours = {LOCK, STAGING, MANIFEST, REBUILT, f".{MANIFEST}.partial"}
    strangers = [p.name for p in out.iterdir() if p.name not in ours and not re.fullmatch(r"\d+", p.name)]
    if strangers:
        raise UserError(f"{out} exists and is not a library (it has {strangers[0]}); choose another --out")


def _next_generation(out: Path) -> int:
    """Folders of a generation without a manifest were left by a kill before the first commit."""
    for folder in out.iterdir():
        if re.fullmatch(r"\d+", folder.name):
            remove_folder(folder)
    return 1


def _remove_leftovers(out: Path, manifest: Manifest) -> None:
    """Folders of generations that were replaced, once their readers have had the time to look again."""
    keep = {manifest.generation}
    if (out / REBUILT).is_file():
        keep.add(manifest.generation + 1)
    for folder in out.iterdir():
        if not re.fullmatch(r"\d+", folder.name) or int(folder.name) in keep:
            continue
        if int(folder.name) > manifest.generation or time.time() - folder.stat().st_mtime > GRACE:
            remove_folder(folder)
