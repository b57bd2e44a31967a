"""Boxes that were found before, in a collection or in a file: their features can be computed on another machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calligram.data.collection import Collection
from calligram.data.revision import images_with_proposals, manifest_section, proposal_record
from calligram.data.write_tables import BOX_COLUMNS
from calligram.errors import UserError
from calligram.features.regions.proposers import Floats, Proposals
from calligram.files import replace_file

Ints = NDArray[np.int64]

BOX_STEPS = 16
"""steps of a pixel to which boxes in a file are rounded; exact boxes of a detector make the file half as large again"""
METADATA_KEY = b"calligram.boxes"
"""key of the record in the metadata of a Parquet file"""


@dataclass(frozen=True)
class StoredBoxes:
    """Boxes of a collection's images, with the settings of the method that found them."""

    source: str
    """name of the regions in the collection"""
    settings: Mapping[str, Any]
    """settings of the method"""
    top: int
    seconds_each: float
    """mean time in which the method processed an image"""
    rows: Ints
    """(I,) rows of the processed images, ascending"""
    counts: Ints
    """(I,) boxes of each image; may be 0"""
    boxes: Floats
    """(R, 4) in pixels, image by image, best first"""
    scores: Floats
    """(R,) NaN if the method gives no scores"""
    labels: tuple[str, ...]
    """(R,) empty if the method gives no classes"""

    @classmethod
    def of_collection(cls, collection: Collection, source: str) -> StoredBoxes:
        """Return the regions that ``calligram regions`` stored under a name.

        Raises:
            UserError: when the collection has no such regions.
        """
        record = proposal_record(collection, source)
        if record is None:
            known = ", ".join(map(repr, manifest_section(collection.manifest, "proposals"))) or "none"
            raise UserError(
                f"collection {collection.folder} has no regions '{source}' (it has: {known}); "
                "find them with --proposals METHOD"
            )
        table = collection.table("regions")
        table = table.filter(pc.equal(table.column("source"), source))
        image = np.asarray(table.column("image").to_numpy(), dtype=np.int64)
        order, rows = np.argsort(image, kind="stable"), np.sort(images_with_proposals(collection, source))
        table = table.take(pa.array(order))
        return cls(
            source,
            record["settings"]["proposals"],
            int(record["settings"]["top"]),
            record["seconds"] / max(len(rows), 1),
            rows,
            np.bincount(image, minlength=len(collection.table("images")))[rows].astype(np.int64),
            np.stack([table.column(axis).to_numpy() for axis in BOX_COLUMNS], axis=1).astype(np.float32),
            table.column("score").to_numpy().astype(np.float32),
            tuple(label or "" for label in table.column("label").to_pylist()),
        )

    def write(self, file: Path, collection: Collection) -> None:
        """Write the boxes into a Parquet file, one row for each image, rounded to a sixteenth of a pixel."""
        starts = pa.array(np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int32))
        rounded = (np.round(self.boxes * BOX_STEPS) / BOX_STEPS).astype(np.float32)
        columns = {axis: pa.array(rounded[:, number]) for number, axis in enumerate(BOX_COLUMNS)}
        columns["score"] = pa.array(self.scores)
        columns["label"] = pa.array(self.labels, pa.string())
        table = collection.table("images").select(["id", "width", "height"]).take(pa.array(self.rows))
        for name, values in columns.items():
            table = table.append_column(name, pa.ListArray.from_arrays(starts, values))
        record = {"source": self.source, "settings": dict(self.settings), "top": self.top, "seconds": self.seconds_each}
        table = table.replace_schema_metadata({METADATA_KEY: json.dumps(record)})
        file.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(file) as partial:
            pq.write_table(
                table,
                partial,
                compression="zstd",
                compression_level=12,
                use_dictionary=["label.list.element"],
                use_byte_stream_split=[f"{name}.list.element" for name in (*BOX_COLUMNS, "score")],
            )

    @classmethod
    def read(cls, file: Path, collection: Collection) -> StoredBoxes:
        """Read the boxes of a file for the images of a collection, by the ids of the images.

        Raises:
            UserError: when the file holds no boxes, or boxes of other images.
        """
        try:
            table = pq.read_table(file)
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"{file} is not a readable Parquet file of boxes ({error})") from error
        metadata = table.schema.metadata or {}
        if METADATA_KEY not in metadata:
            raise UserError(f"{file} holds no boxes; write such a file with calligram regions --save-boxes FILE")
        record = json.loads(metadata[METADATA_KEY])
        table = table.append_column("row", _matching_rows(file, table, collection)).sort_by("row")
        values = {name: pc.list_flatten(table.column(name)) for name in (*BOX_COLUMNS, "score", "label")}
        return cls(
            record["source"],
            record["settings"],
            record["top"],
            record["seconds"],
            table.column("row").to_numpy(),
            pc.list_value_length(table.column("x0")).to_numpy().astype(np.int64),
            np.stack([values[axis].to_numpy() for axis in BOX_COLUMNS], axis=1),
            values["score"].to_numpy(),
            tuple(values["label"].to_pylist()),
        )

    def proposals(self, row: int) -> Proposals:
        """Return the boxes of the image in this row of the collection."""
        place = int(np.searchsorted(self.rows, row))
        end = int(self._ends[place])
        chosen = slice(end - int(self.counts[place]), end)
        scores, labels = self.scores[chosen], self.labels[chosen]
        return Proposals(
            self.boxes[chosen], None if np.isnan(scores).any() else scores, labels if any(labels) else None
        )

    @cached_property
    def _ends(self) -> Ints:
        return np.cumsum(self.counts)


def _matching_rows(file: Path, table: pa.Table, collection: Collection) -> pa.Array:
    """Return the row of the collection for each image of the file."""
    images = collection.table("images")
    rows = pc.index_in(table.column("id"), value_set=images.column("id").combine_chunks())
    if rows.null_count:
        raise UserError(
            f"{rows.null_count} of {len(table)} images of {file} are not in {collection.folder}; "
            "import the same data there"
        )
    for side in ("width", "height"):
        if pc.all(pc.equal(table.column(side), images.column(side).take(rows))).as_py() is False:
            raise UserError(f"pictures of {collection.folder} have other sizes than those of {file}; import the same")
    return rows.cast(pa.int64())
