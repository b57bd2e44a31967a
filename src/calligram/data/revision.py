"""Changes to an existing collection: a writer adds new tables next to the old ones, then replaces the manifest.

Replacing the manifest commits the change. A process that dies earlier has changed nothing. A later writer removes files
that no manifest lists. ``store_regions`` adds regions to a collection in this way.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calligram.checksums import folder_records
from calligram.data.collection import MANIFEST, Collection
from calligram.data.write_tables import REGION_TYPES
from calligram.errors import UserError
from calligram.files import LOCK_FILE, named_disk_errors, remove_leftovers, replace_json, sync_file, wait_for_lock

Ints = NDArray[np.int64]
PROPOSAL_TYPES = {"source": pa.string(), "image": pa.int32(), "count": pa.int32()}


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Lock the collection for writing; other writers wait, also when the collection is replaced meanwhile.

    What a killed process left next to the collection is removed first.
    """
    remove_leftovers(folder)
    with wait_for_lock(folder / LOCK_FILE), named_disk_errors(folder):
        yield


def next_revision(manifest: Mapping[str, object]) -> int:
    """The number of the revision that is written next."""
    revision = manifest.get("revision", 0)
    assert isinstance(revision, int)
    return revision + 1


def write_new_tables(folder: Path, manifest: Mapping[str, object], tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    """Write tables under new file names; returns the manifest that lists them. The manifest is not written."""
    revision = next_revision(manifest)
    files = {name: f"{name}.{revision}.parquet" for name in tables}
    for name, table in tables.items():
        pq.write_table(table, folder / files[name], compression="zstd")
        sync_file(folder / files[name])
    found: dict[str, Any] = {
        **manifest,
        "revision": revision,
        "tables": {**manifest_section(manifest, "tables"), **files},
        "counts": {**manifest_section(manifest, "counts"), **{name: len(table) for name, table in tables.items()}},
    }
    return with_checksums(folder, found, files.values())


def with_checksums(folder: Path, manifest: Mapping[str, Any], new: Iterable[str]) -> dict[str, Any]:
    """The manifest with the checksums of new files, and without those of files that it no longer names."""
    tables, counts = manifest_section(manifest, "tables"), manifest_section(manifest, "counts")
    named = {tables.get(name, f"{name}.parquet") for name in counts}
    named |= {file for files in manifest_section(manifest, "features").values() for file in files}
    known = {name: record for name, record in manifest_section(manifest, "files").items() if name in named}
    shards = [str(shard) for shard in manifest.get("shards", [])]
    known |= {name: manifest["files"][name] for name in shards if name in manifest_section(manifest, "files")}
    return {**manifest, "files": {**known, **folder_records(folder, new)}}


def replace_manifest(folder: Path, manifest: Mapping[str, object]) -> None:
    """Replace the manifest atomically. This commits the change."""
    replace_json(folder / MANIFEST, manifest, indent=2)


def remove_old_tables(
    folder: Path, before: Mapping[str, object], after: Mapping[str, object], *, keep_seconds: float = 0.0
) -> None:
    """Remove tables of earlier revisions and of writers that died.

    The tables of the previous revision stay, because a process may have the collection open.

    Args:
        keep_seconds: seconds for which older tables stay too, for collections with many revisions in a short time.
    """
    past, now = manifest_section(before, "tables"), manifest_section(after, "tables")
    for name, file in now.items():
        found = [f for f in folder.glob(f"{name}*.parquet") if re.fullmatch(rf"{name}(\.\d+)?\.parquet", f.name)]
        ordered = sorted(found, key=_revision_of_file)
        current = (folder / file).stat().st_mtime
        for place, old in enumerate(ordered):
            if old.name in (file, past.get(name, f"{name}.parquet")):
                continue
            # A table was replaced when the next one was written, or shortly after.
            replaced = ordered[place + 1].stat().st_mtime if place + 1 < len(ordered) else current
            if current - replaced >= keep_seconds:
                old.unlink()


def manifest_section(manifest: Mapping[str, object], key: str) -> dict[str, Any]:
    """A copy of one section of the manifest; empty where the section is missing."""
    found = manifest.get(key, {})
    assert isinstance(found, dict)
    return dict(found)


def _revision_of_file(file: Path) -> int:
    number = file.name.split(".")[-2]
    return int(number) if number.isdigit() else 0


@dataclass(frozen=True)
class NewRegions:
    """Regions of one source, for images without regions of this source."""

    source: str
    settings: Mapping[str, Any]
    """settings of the proposal method; regions of this source with other settings are replaced"""
    rows: pa.Table
    """columns of ``regions``; ``image`` holds row numbers"""
    images: Ints
    """rows of all processed images, including images without a region"""
    counts: Ints
    """number of regions of each processed image"""
    features: Path | None = None
    """array with one row for each of ``images``; the file is moved into the collection"""
    seconds: float = 0.0
    """time that the proposals took"""


def proposal_record(collection: Collection, source: str) -> Mapping[str, Any] | None:
    """The record of a source's proposals in the manifest; None where the collection has none.

    Raises:
        UserError: when regions or features of the imported source have this name.
    """
    known = manifest_section(collection.manifest, "proposals")
    if source in known:
        found: Mapping[str, Any] = known[source]
        return found
    if source == "truth" or pc.any(pc.equal(collection.table("regions").column("source"), source)).as_py():
        raise UserError(f"the regions '{source}' came with the collection and cannot change; choose another --name")
    if source in collection.features:
        raise UserError(f"the features '{source}' came with the collection; choose another --name for the regions")
    return None


def images_with_proposals(collection: Collection, source: str) -> Ints:
    """Rows of the images that were processed for regions of this source."""
    if not collection.has("proposals"):
        return np.zeros(0, dtype=np.int64)
    table = collection.table("proposals")
    return np.asarray(table.filter(pc.equal(table.column("source"), source)).column("image").to_numpy(), dtype=np.int64)


def store_regions(folder: Path, new: NewRegions) -> Collection:
    """Add the regions to the collection in ``folder``."""
    with write_lock(folder):
        before = Collection.open(folder)
        known = proposal_record(before, new.source)
        kept = known if known is not None and known["settings"] == dict(new.settings) else None
        tables = _region_tables(before, new, keep=kept is not None)
        if new.features is not None or f"features.{new.source}" in before.table("images").column_names:
            tables["images"] = _image_table(before, new, keep=kept is not None)
        manifest = write_new_tables(folder, before.manifest, tables)
        manifest["features"] = _feature_files(folder, manifest, new, keep=kept is not None)
        manifest["proposals"] = {**manifest_section(manifest, "proposals"), new.source: _new_record(new, kept)}
        added = [f for f in manifest["features"].get(new.source, []) if f not in manifest["files"]]
        manifest = with_checksums(folder, manifest, added)
        replace_manifest(folder, manifest)
        _remove_old_files(folder, before.manifest, manifest)
    return Collection.open(folder)


def _region_tables(before: Collection, new: NewRegions, *, keep: bool) -> dict[str, pa.Table]:
    """The tables of regions and of processed images; also groundings, where region rows moved."""
    regions = before.table("regions")
    processed = pa.table(
        {
            "source": pa.array([new.source] * len(new.images), pa.string()),
            "image": pa.array(new.images, pa.int32()),
            "count": pa.array(new.counts, pa.int32()),
        }
    )
    earlier = before.table("proposals") if before.has("proposals") else processed.slice(0, 0)
    made: dict[str, pa.Table] = {}
    if not keep:
        stays = pc.fill_null(pc.not_equal(regions.column("source"), new.source), True)
        if not pc.all(stays).as_py():
            made["groundings"] = _renumbered_groundings(before, np.asarray(stays.to_numpy(), dtype=bool))
            regions = regions.filter(stays)
        earlier = earlier.filter(pc.not_equal(earlier.column("source"), new.source))
    made["regions"] = pa.concat_tables([regions, new.rows.select(list(REGION_TYPES)).cast(regions.schema)])
    made["proposals"] = pa.concat_tables([earlier, processed])
    return made


def _renumbered_groundings(before: Collection, stays: NDArray[np.bool_]) -> pa.Table:
    """The groundings with the new row numbers of the regions that stay."""
    place = np.cumsum(stays) - 1
    region, phrase = before.numbers("groundings", "region"), before.numbers("groundings", "phrase")
    held = stays[region]
    return pa.table({"phrase": pa.array(phrase[held], pa.int32()), "region": pa.array(place[region[held]], pa.int32())})


def _image_table(before: Collection, new: NewRegions, *, keep: bool) -> pa.Table:
    """The images with a column for the row of each image in the feature array of the source."""
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
    """The feature files of the manifest with the new file, which is moved into the collection."""
    files = manifest_section(manifest, "features")
    earlier = files.pop(new.source, []) if keep else []
    files.pop(new.source, None)
    if new.features is None:
        return files
    name = f"features/{new.source}.{manifest['revision']}.npy"
    (folder / "features").mkdir(exist_ok=True)
    shutil.move(new.features, folder / name)
    sync_file(folder / name)
    return {**files, new.source: [*earlier, name]}


def _new_record(new: NewRegions, kept: Mapping[str, Any] | None) -> dict[str, Any]:
    images, seconds = (kept["images"], kept["seconds"]) if kept else (0, 0.0)
    return {
        "settings": dict(new.settings),
        "images": images + len(new.images),
        "seconds": round(seconds + new.seconds, 3),
    }


def _remove_old_files(folder: Path, before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Remove replaced tables, and feature arrays of replaced regions."""
    remove_old_tables(folder, before, after)
    named = {f for files in manifest_section(after, "features").values() for f in files}
    for source in manifest_section(after, "proposals"):
        for file_name in manifest_section(before, "features").get(source, []):
            if file_name not in named:
                (folder / file_name).unlink(missing_ok=True)
