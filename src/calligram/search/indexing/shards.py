"""Shards: several workers encode pictures into staging folders, and one indexing run adds the rows to the library."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from calligram.device import half_networks_on, use_half_networks
from calligram.errors import STAGING, UserError
from calligram.files import LOCK_FILE, lock_folder, replace_file, try_lock
from calligram.progress import Track, silent
from calligram.search.indexing.diff import LibraryState, diff, pictures_to_encode, short_hash
from calligram.search.indexing.encode import (
    ENCODED_ROW,
    NetworkPrecision,
    PictureEncoder,
    Row,
    refuse_unknown_precision,
    row_batches,
    wants_half_networks,
)
from calligram.search.indexing.sources import PictureSource, ScannedPicture, check_readable, open_source, shard_of
from calligram.search.library.manifest import MANIFEST, read_manifest, refuse_other_folder
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.library.tables import Tables

STAGED_FILE_ROWS = 1024
STAGED_FILE_SECONDS = 20.0
"""a file is written after so many rows or so much time"""


class Shard(NamedTuple):
    """One of several shares of the pictures, numbered from one."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read a shard such as ``3/16``."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(
                f"--shard takes a number and a count such as 3/16, the number from 1 to the count, not '{text}'"
            )
        return cls(int(match[1]), int(match[2]))


def stage_source(
    models: LibraryMatchers,
    source: Path,
    out: Path,
    shard: Shard,
    *,
    rebuild: bool = False,
    device: torch.device | str = "cpu",
    precision: NetworkPrecision | None = None,
    track: Track = silent,
) -> int:
    """Encode a shard of the pictures that the library in ``out`` lacks into its staging folder.

    Returns the number of pictures encoded now. A run that was stopped continues where it was.

    Args:
        models: the matchers that encode.
        source: a folder of pictures or a collection.
        out: folder of the library.
        shard: which share of the pictures.
        rebuild: encode all pictures, for ``index_source`` with ``rebuild``.
        device: where pictures are encoded.
        precision: of transformers, see ``NetworkPrecision``; by default as before, and ``auto`` for a new library.
        track: shows progress.
    """
    refuse_unknown_precision(precision)
    opened = open_source(source)
    check_readable(models, opened)
    refuse_other_folder(out)
    before: Sequence[str] = ()
    if not rebuild and (out / MANIFEST).is_file():
        manifest = read_manifest(out)
        models.check(manifest, out, source)
        before = manifest.precisions
    folder = _folder(out, opened) / f"{shard.number}-of-{shard.of}"
    with lock_folder(folder, "shard"), use_half_networks(wants_half_networks(precision, before)):
        _begin(folder, models)
        state = LibraryState(-1) if rebuild else _state(out, opened)
        pictures = shard_of(pictures_to_encode(diff(opened.scan(), state)), *shard)
        done = set(_stamps(folder))
        left = [picture for picture in pictures if (picture.key, picture.size, picture.mtime) not in done]
        encoder = PictureEncoder.of(models, opened, device)
        for rows in row_batches(encoder.run(left, state, track), STAGED_FILE_ROWS, STAGED_FILE_SECONDS):
            _write(folder, rows)
    return len(left)


def staged_rows(
    out: Path, source: PictureSource, models: LibraryMatchers, pictures: Mapping[str, ScannedPicture]
) -> Iterator[Row]:
    """Rows of the staging folder for these pictures, each once.

    Raises:
        UserError: while a worker still writes to a shard.
    """
    taken: set[str] = set()
    for folder in _shards(out, source):
        with try_lock(folder / LOCK_FILE) as locked:
            if not locked:
                raise UserError(f"shard {folder.name} of {out} is still being encoded; wait until it is done")
        if _about(folder) != _fingerprints(models):
            continue
        for file in sorted(folder.glob("*.parquet")):
            for row in _rows_of(file):
                if _fits(row, pictures) and row["key"] not in taken:
                    taken.add(row["key"])
                    yield row


def _rows_of(file: Path, columns: list[str] | None = None) -> Iterator[Row]:
    """The rows of a staged file, with some columns or all.

    Raises:
        UserError: when the file is damaged.
    """
    try:
        for batch in pq.ParquetFile(file, page_checksum_verification=True).iter_batches(
            STAGED_FILE_ROWS, columns=columns
        ):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise UserError(f"{file} is damaged ({error}); delete it, and these pictures are encoded again") from error


def remove_staged(out: Path, source: PictureSource) -> None:
    """Delete the staging folder of a source."""
    shutil.rmtree(_folder(out, source), ignore_errors=True)


def _is_precise(row: Row) -> bool:
    """Whether a staged row has the precision that is wanted now, or a higher one."""
    return half_networks_on() or row.get("precision") != "bf16"


def _fits(row: Row, pictures: Mapping[str, ScannedPicture]) -> bool:
    """Whether a staged row is of a picture as it is now."""
    picture = pictures.get(row["key"])
    return picture is not None and _is_precise(row) and (picture.size, picture.mtime) == (row["bytes"], row["mtime"])


def _folder(out: Path, source: PictureSource) -> Path:
    return out / STAGING / short_hash(str(source.root))


def _shards(out: Path, source: PictureSource) -> list[Path]:
    folder = _folder(out, source)
    return sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


def _fingerprints(models: LibraryMatchers) -> dict[str, str | None]:
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
    """Delete partial files, and everything where the shard was encoded by other matchers."""
    for partial in folder.glob("*.partial"):
        partial.unlink()
    if _about(folder) != _fingerprints(models):
        for file in folder.glob("*.parquet"):
            file.unlink()
        (folder / "about.json").write_text(json.dumps(_fingerprints(models)), encoding="utf-8")


def _state(out: Path, source: PictureSource) -> LibraryState:
    """The state of the library for this source; empty where there is no library yet."""
    if not (out / MANIFEST).is_file():
        return LibraryState(-1)
    manifest = read_manifest(out)
    known = manifest.source_at(source.root)
    tables = Tables.open(out / str(manifest.generation) / "tables", manifest.versions, manifest.files)
    return LibraryState.load(tables, known.number if known else -1)


def _stamps(folder: Path) -> Iterator[tuple[str, int, int]]:
    for file in folder.glob("*.parquet"):
        rows = _rows_of(file, ["key", "bytes", "mtime", "precision"])
        yield from ((row["key"], row["bytes"], row["mtime"]) for row in rows if _is_precise(row))


def _write(folder: Path, rows: list[Row]) -> None:
    number = 1 + max((int(file.stem) for file in folder.glob("*.parquet")), default=-1)
    with replace_file(folder / f"{number:06d}.parquet") as partial:
        pq.write_table(
            pa.Table.from_pylist(rows, schema=ENCODED_ROW), partial, compression="none", write_page_checksum=True
        )
