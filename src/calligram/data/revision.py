"""How a collection that exists is changed: new tables beside the old, and replacing the manifest makes them count.

A process that dies before that has changed nothing; files that no manifest names are removed by a later writer.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calligram.data.collection import MANIFEST, Collection
from calligram.data.write_tables import REGION_TYPES
from calligram.errors import UserError


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
        "tables": {**manifest_section(manifest, "tables"), **files},
        "counts": {**manifest_section(manifest, "counts"), **{name: len(table) for name, table in tables.items()}},
    }


def replace_manifest(folder: Path, manifest: Mapping[str, object]) -> None:
    """The moment at which a change to the collection happens."""
    partial = folder / f"{MANIFEST}.part"
    partial.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    to_disk(partial)
    os.replace(partial, folder / MANIFEST)


def remove_old_tables(
    folder: Path, before: Mapping[str, object], after: Mapping[str, object], *, readers: float = 0.0
) -> None:
    """Remove tables of earlier revisions and of writers that died.

    The tables that counted until now stay for one more revision: a process may have the collection open.

    Args:
        readers: seconds that tables stay after they were replaced, where many revisions may follow each other.
    """
    past, now = manifest_section(before, "tables"), manifest_section(after, "tables")
    for name, file in now.items():
        found = [f for f in folder.glob(f"{name}*.parquet") if re.fullmatch(rf"{name}(\.\d+)?\.parquet", f.name)]
        ordered = sorted(found, key=_revision_of_file)
        current = (folder / file).stat().st_mtime
        for place, old in enumerate(ordered):
            if old.name in (file, past.get(name, f"{name}.parquet")):
                continue
            # What replaced a table was written when the table ceased to count, or a moment before.
            replaced = ordered[place + 1].stat().st_mtime if place + 1 < len(ordered) else current
            if current - replaced >= readers:
                old.unlink()


def manifest_section(manifest: Mapping[str, object], key: str) -> dict[str, Any]:
    """A part of the manifest that names things; empty where there is none."""
    found = manifest.get(key, {})
    assert isinstance(found, dict)
    return dict(found)


def _revision_of_file(file: Path) -> int:
    number = file.name.split(".")[-2]
    return int(number) if number.isdigit() else 0


def to_disk(file: Path) -> None:
    """Wait until a file's content is on the disk, so that no manifest names what a loss of power could take."""
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())


# Regions added to a collection that exists, as ``revising`` does it.

Ints = NDArray[np.int64]
PROPOSAL_TYPES = {"source": pa.string(), "image": pa.int32(), "count": pa.int32()}


@dataclass(frozen=True)
class NewRegions:
    """Regions of one source, for images that had none of them yet."""

    source: str
    settings: Mapping[str, Any]
    """how they were found; where the collection has regions of this source by other settings, those are replaced"""
    rows: pa.Table
    """columns of ``regions``; ``image`` in row numbers"""
    images: Ints
    """rows of all images that were looked at, also those without a region"""
    counts: Ints
    """regions of each"""
    features: Path | None = None
    """array whose rows belong to ``images``; it is moved into the collection"""
    seconds: float = 0.0


def proposal_record(collection: Collection, source: str) -> Mapping[str, Any] | None:
    """What the collection knows of how a source's regions were found; None where it has none.

    Raises:
        UserError: when the name is taken by regions or features that came with the collection.
    """
    known = manifest_section(collection.manifest, "proposals")
    if source in known:
        found: Mapping[str, Any] = known[source]
        return found
    if source == "truth" or pc.any(pc.equal(collection.table("regions").column("source"), source)).as_py():
        raise UserError(f"the regions '{source}' came with the collection and stay as they are; choose another --name")
    if source in collection.features:
        raise UserError(f"the features '{source}' came with the collection; choose another --name for the regions")
    return None


def images_with_proposals(collection: Collection, source: str) -> Ints:
    """Rows of the images that were looked at for regions of this source."""
    if not collection.has("proposals"):
        return np.zeros(0, dtype=np.int64)
    table = collection.table("proposals")
    return np.asarray(table.filter(pc.equal(table.column("source"), source)).column("image").to_numpy(), dtype=np.int64)


def store_regions(folder: Path, new: NewRegions) -> Collection:
    """Add the regions to the collection in ``folder``."""
    with writing(folder):
        before = Collection.open(folder)
        known = proposal_record(before, new.source)
        kept = known if known is not None and known["settings"] == dict(new.settings) else None
        tables = _region_tables(before, new, keep=kept is not None)
        if new.features is not None or f"features.{new.source}" in before.table("images").column_names:
            tables["images"] = _image_table(before, new, keep=kept is not None)
        manifest = write_tables(folder, before.manifest, tables)
        manifest["features"] = _feature_files(folder, manifest, new, keep=kept is not None)
        manifest["proposals"] = {**manifest_section(manifest, "proposals"), new.source: _new_record(new, kept)}
        replace_manifest(folder, manifest)
        _remove_old_files(folder, before.manifest, manifest)
    return Collection.open(folder)


def _region_tables(before: Collection, new: NewRegions, *, keep: bool) -> dict[str, pa.Table]:
    """The tables of regions, of what was looked at and, where rows moved, of groundings."""
    regions = before.table("regions")
    looked = pa.table(
        {
            "source": pa.array([new.source] * len(new.images), pa.string()),
            "image": pa.array(new.images, pa.int32()),
            "count": pa.array(new.counts, pa.int32()),
        }
    )
    earlier = before.table("proposals") if before.has("proposals") else looked.slice(0, 0)
    made: dict[str, pa.Table] = {}
    if not keep:
        stays = pc.fill_null(pc.not_equal(regions.column("source"), new.source), True)
        if not pc.all(stays).as_py():
            made["groundings"] = _renumbered_groundings(before, np.asarray(stays.to_numpy(), dtype=bool))
            regions = regions.filter(stays)
        earlier = earlier.filter(pc.not_equal(earlier.column("source"), new.source))
    made["regions"] = pa.concat_tables([regions, new.rows.select(list(REGION_TYPES)).cast(regions.schema)])
    made["proposals"] = pa.concat_tables([earlier, looked])
    return made


def _renumbered_groundings(before: Collection, stays: NDArray[np.bool_]) -> pa.Table:
    """Groundings by the new row numbers of the regions that stay."""
    place = np.cumsum(stays) - 1
    region, phrase = before.numbers("groundings", "region"), before.numbers("groundings", "phrase")
    held = stays[region]
    return pa.table({"phrase": pa.array(phrase[held], pa.int32()), "region": pa.array(place[region[held]], pa.int32())})


def _image_table(before: Collection, new: NewRegions, *, keep: bool) -> pa.Table:
    """The images with the row of each in the source's feature array."""
    images, column = before.table("images"), f"features.{new.source}"
    present = column in images.column_names
    rows = np.full(len(images), -1, dtype=np.int64)
    if keep and present:
        rows = before.numbers("images", column).copy()
    if present:
        images = images.drop_columns([column])
    if new.features is None:
        return images
    rows[new.images] = np.arange(len(new.images)) + rows.max(initial=-1) + 1
    return images.append_column(column, pa.array(rows, pa.int64(), mask=rows < 0))


def _feature_files(folder: Path, manifest: Mapping[str, object], new: NewRegions, *, keep: bool) -> dict[str, Any]:
    """The manifest's list of feature files with the new one, which is moved to its place."""
    files = manifest_section(manifest, "features")
    earlier = files.pop(new.source, []) if keep else []
    files.pop(new.source, None)
    if new.features is None:
        return files
    name = f"features/{new.source}.{manifest['revision']}.npy"
    (folder / "features").mkdir(exist_ok=True)
    shutil.move(new.features, folder / name)
    return {**files, new.source: [*earlier, name]}


def _new_record(new: NewRegions, kept: Mapping[str, Any] | None) -> dict[str, Any]:
    images, seconds = (kept["images"], kept["seconds"]) if kept else (0, 0.0)
    return {
        "settings": dict(new.settings),
        "images": images + len(new.images),
        "seconds": round(seconds + new.seconds, 3),
    }


def _remove_old_files(folder: Path, before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Remove tables that were replaced, and arrays of regions that were."""
    remove_old_tables(folder, before, after)
    named = {f for files in manifest_section(after, "features").values() for f in files}
    for source in manifest_section(after, "proposals"):
        for file_name in manifest_section(before, "features").get(source, []):
            if file_name not in named:
                (folder / file_name).unlink(missing_ok=True)
