"""Regions added to a collection that exists, as ``revising`` does it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calligram.data.collection import Collection
from calligram.data.revising import listed, replace_manifest, sweep_tables, write_tables, writing
from calligram.data.tables import REGION_TYPES
from calligram.errors import UserError

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


def recorded(collection: Collection, source: str) -> Mapping[str, Any] | None:
    """What the collection knows of how a source's regions were found; None where it has none.

    Raises:
        UserError: when the name is taken by regions or features that came with the collection.
    """
    known = listed(collection.manifest, "proposals")
    if source in known:
        found: Mapping[str, Any] = known[source]
        return found
    if source == "truth" or pc.any(pc.equal(collection.table("regions").column("source"), source)).as_py():
        raise UserError(f"the regions '{source}' came with the collection and stay as they are; choose another --name")
    if source in collection.features:
        raise UserError(f"the features '{source}' came with the collection; choose another --name for the regions")
    return None


def images_with(collection: Collection, source: str) -> Ints:
    """Rows of the images that were looked at for regions of this source."""
    if not collection.has("proposals"):
        return np.zeros(0, dtype=np.int64)
    table = collection.table("proposals")
    return np.asarray(table.filter(pc.equal(table.column("source"), source)).column("image").to_numpy(), dtype=np.int64)


def store_regions(folder: Path, new: NewRegions) -> Collection:
    """Add the regions to the collection in ``folder``."""
    with writing(folder):
        before = Collection.open(folder)
        known = recorded(before, new.source)
        kept = known if known is not None and known["settings"] == dict(new.settings) else None
        tables = _region_tables(before, new, keep=kept is not None)
        if new.features is not None or f"features.{new.source}" in before.table("images").column_names:
            tables["images"] = _image_table(before, new, keep=kept is not None)
        manifest = write_tables(folder, before.manifest, tables)
        manifest["features"] = _feature_files(folder, manifest, new, keep=kept is not None)
        manifest["proposals"] = {**listed(manifest, "proposals"), new.source: _record(new, kept)}
        replace_manifest(folder, manifest)
        _sweep(folder, before.manifest, manifest)
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
            made["groundings"] = _moved(before, np.asarray(stays.to_numpy(), dtype=bool))
            regions = regions.filter(stays)
        earlier = earlier.filter(pc.not_equal(earlier.column("source"), new.source))
    made["regions"] = pa.concat_tables([regions, new.rows.select(list(REGION_TYPES)).cast(regions.schema)])
    made["proposals"] = pa.concat_tables([earlier, looked])
    return made


def _moved(before: Collection, stays: NDArray[np.bool_]) -> pa.Table:
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
    files = listed(manifest, "features")
    earlier = files.pop(new.source, []) if keep else []
    files.pop(new.source, None)
    if new.features is None:
        return files
    name = f"features/{new.source}.{manifest['revision']}.npy"
    (folder / "features").mkdir(exist_ok=True)
    shutil.move(new.features, folder / name)
    return {**files, new.source: [*earlier, name]}


def _record(new: NewRegions, kept: Mapping[str, Any] | None) -> dict[str, Any]:
    images, seconds = (kept["images"], kept["seconds"]) if kept else (0, 0.0)
    return {
        "settings": dict(new.settings),
        "images": images + len(new.images),
        "seconds": round(seconds + new.seconds, 3),
    }


def _sweep(folder: Path, before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Remove tables that were replaced, and arrays of regions that were."""
    sweep_tables(folder, before, after)
    named = {f for files in listed(after, "features").values() for f in files}
    for source in listed(after, "proposals"):
        for file_name in listed(before, "features").get(source, []):
            if file_name not in named:
                (folder / file_name).unlink(missing_ok=True)
