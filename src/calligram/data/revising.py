"""How a collection that exists is changed: new tables beside the old, and replacing the manifest makes them count.

A process that dies before that has changed nothing; files that no manifest names are removed by a later writer.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from calligram.data.collection import MANIFEST


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the collection for writing; others wait. Released when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: writers must take turns by themselves
        yield
        return
    while True:
        with (folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_still(folder / ".lock", file):
                continue  # the whole collection was replaced while this waited for the old one's lock
            yield
            return


def _is_still(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def next_revision(manifest: Mapping[str, object]) -> int:
    """The number of the state that is about to be written."""
    revision = manifest.get("revision", 0)
    assert isinstance(revision, int)
    return revision + 1


def write_tables(folder: Path, manifest: Mapping[str, object], tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    """Write tables under names that nobody reads yet; returns the manifest that names them."""
    revision = next_revision(manifest)
    files = {name: f"{name}.{revision}.parquet" for name in tables}
    for name, table in tables.items():
        pq.write_table(table, folder / files[name], compression="zstd")
        to_disk(folder / files[name])
    return {
        **manifest,
        "revision": revision,
        "tables": {**listed(manifest, "tables"), **files},
        "counts": {**listed(manifest, "counts"), **{name: len(table) for name, table in tables.items()}},
    }


def replace_manifest(folder: Path, manifest: Mapping[str, object]) -> None:
    """The moment at which a change to the collection happens."""
    partial = folder / f"{MANIFEST}.part"
    partial.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    to_disk(partial)
    os.replace(partial, folder / MANIFEST)


def sweep_tables(
    folder: Path, before: Mapping[str, object], after: Mapping[str, object], *, readers: float = 0.0
) -> None:
    """Remove tables of earlier revisions and of writers that died.

    The tables that counted until now stay for one more revision: a process may have the collection open.

    Args:
        readers: seconds that tables stay after they were replaced, where many revisions may follow each other.
    """
    past, now = listed(before, "tables"), listed(after, "tables")
    for name, file in now.items():
        found = [f for f in folder.glob(f"{name}*.parquet") if re.fullmatch(rf"{name}(\.\d+)?\.parquet", f.name)]
        ordered = sorted(found, key=_revision)
        current = (folder / file).stat().st_mtime
        for place, old in enumerate(ordered):
            if old.name in (file, past.get(name, f"{name}.parquet")):
                continue
            # What replaced a table was written when the table ceased to count, or a moment before.
            replaced = ordered[place + 1].stat().st_mtime if place + 1 < len(ordered) else current
            if current - replaced >= readers:
                old.unlink()


def listed(manifest: Mapping[str, object], key: str) -> dict[str, Any]:
    """A part of the manifest that names things; empty where there is none."""
    found = manifest.get(key, {})
    assert isinstance(found, dict)
    return dict(found)


def _revision(file: Path) -> int:
    number = file.name.split(".")[-2]
    return int(number) if number.isdigit() else 0


def to_disk(file: Path) -> None:
    """Wait until a file's content is on the disk, so that no manifest names what a loss of power could take."""
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())
