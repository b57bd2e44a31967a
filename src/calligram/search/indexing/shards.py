"""Encodings that wait to be taken into a library: written by many workers at once, each into a folder of its own."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from calligram.errors import UserError
from calligram.files import held, locked
from calligram.progress import Track, silent
from calligram.search.indexing.diff import LibraryState, compare, short_hash
from calligram.search.indexing.encode import WORKED, ImageEncoder, PictureEncoder, Row
from calligram.search.indexing.sources import PictureSource, ScannedPicture, shard_of
from calligram.search.library.manifest import MANIFEST, read_manifest
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.library.tables import Tables

STAGING = "staging"
PIECE_ROWS = 1024
PIECE_SECONDS = 20.0


class Shard(NamedTuple):
    """One of several shares of the work, numbered from one."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From ``3/16``."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(
                f"--shard takes a number and a count such as 3/16, the number from 1 to the count, not '{text}'"
            )
        return cls(int(match[1]), int(match[2]))


def stage(
    models: LibraryMatchers,
    source: PictureSource,
    out: Path,
    shard: Shard,
    *,
    rebuild: bool = False,
    device: torch.device | str = "cpu",
    track: Track = silent,
) -> int:
    """Encode a shard of what the library in ``out`` lacks; gives how many pictures were worked on now.

    Stopped and started again, it goes on where it was.

    Args:
        rebuild: take it as empty, since it is to be made anew.
    """
    folder = _folder(out, source) / f"{shard.number}-of-{shard.of}"
    with locked(folder, "shard"):
        _begin(folder, models)
        state = LibraryState(-1) if rebuild else _state(out, source)
        todo = shard_of(compare(source.scan(), state, source).todo, *shard)
        done = set(_stamps(folder))
        left = [entry for entry in todo if (entry.key, entry.size, entry.mtime) not in done]
        worker = make_worker(models, source, device)
        for rows in gathered(worker.run(left, state, track), PIECE_ROWS, PIECE_SECONDS):
            _write(folder, rows)
    return len(left)


def make_worker(models: LibraryMatchers, source: PictureSource, device: torch.device | str) -> PictureEncoder:
    """A worker with the matchers on a device."""
    encoder = ImageEncoder(models.matcher, device)
    if models.reranker is None or models.reranker is models.matcher:
        return PictureEncoder(source, encoder, encoder if models.reranker is not None else None)
    return PictureEncoder(source, encoder, ImageEncoder(models.reranker, device))


def gathered(batches: Iterable[list[Row]], most: int, seconds: float) -> Iterator[list[Row]]:
    """Join batches until there are enough rows, or enough time has passed."""
    rows: list[Row] = []
    since = time.monotonic()
    for batch in batches:
        rows += batch
        if len(rows) >= most or time.monotonic() - since > seconds:
            yield rows
            rows, since = [], time.monotonic()
    if rows:
        yield rows


def staged_rows(
    out: Path, source: PictureSource, models: LibraryMatchers, wanted: Mapping[str, ScannedPicture]
) -> Iterator[list[Row]]:
    """What workers encoded of the wanted entries, each once.

    Raises:
        UserError: when a worker is still at it.
    """
    taken: set[str] = set()
    for folder in _shards(out, source):
        with held(folder) as free:
            if not free:
                raise UserError(f"shard {folder.name} of {out} is still being worked on; wait until it is done")
        if _about(folder) != _described(models):
            continue
        for file in sorted(folder.glob("*.parquet")):
            for batch in pq.ParquetFile(file).iter_batches(PIECE_ROWS):
                rows = [row for row in batch.to_pylist() if _fits(row, wanted) and row["key"] not in taken]
                taken |= {row["key"] for row in rows}
                if rows:
                    yield rows


def remove_staged(out: Path, source: PictureSource) -> None:
    """Delete what was taken in."""
    shutil.rmtree(_folder(out, source), ignore_errors=True)


def _fits(row: Row, wanted: Mapping[str, ScannedPicture]) -> bool:
    entry = wanted.get(row["key"])
    return entry is not None and (entry.size, entry.mtime) == (row["bytes"], row["mtime"])


def _folder(out: Path, source: PictureSource) -> Path:
    return out / STAGING / short_hash(str(source.root))


def _shards(out: Path, source: PictureSource) -> list[Path]:
    folder = _folder(out, source)
    return sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


def _described(models: LibraryMatchers) -> dict[str, str | None]:
    return {
        "matcher": models.matcher.fingerprint,
        "reranker": models.reranker.fingerprint if models.reranker is not None else None,
    }


def _about(folder: Path) -> object:
    try:
        return json.loads((folder / "about.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _begin(folder: Path, models: LibraryMatchers) -> None:
    """Start anew where the shard was begun with other matchers."""
    for partial in folder.glob("*.partial"):
        partial.unlink()
    if _about(folder) != _described(models):
        for file in folder.glob("*.parquet"):
            file.unlink()
        (folder / "about.json").write_text(json.dumps(_described(models)), encoding="utf-8")


def _state(out: Path, source: PictureSource) -> LibraryState:
    """What the library has of the source; nothing where there is no library yet."""
    if not (out / MANIFEST).is_file():
        return LibraryState(-1)
    manifest = read_manifest(out)
    known = manifest.source_at(source.root)
    return LibraryState.load(
        Tables.open(out / str(manifest.generation) / "tables", manifest.versions), known.number if known else -1
    )


def _stamps(folder: Path) -> Iterator[tuple[str, int, int]]:
    for file in folder.glob("*.parquet"):
        table = pq.read_table(file, columns=["key", "bytes", "mtime"])
        yield from zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)


def _write(folder: Path, rows: list[Row]) -> None:
    number = 1 + max((int(file.stem) for file in folder.glob("*.parquet")), default=-1)
    partial = folder / f"{number:06d}.partial"
    pq.write_table(pa.Table.from_pylist(rows, schema=WORKED), partial, compression="none")
    partial.rename(partial.with_suffix(".parquet"))
