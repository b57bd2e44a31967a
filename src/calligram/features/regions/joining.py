"""Finished chunks as rows and one feature array for the collection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.data.collection import Collection
from calligram.data.region_writing import NewRegions
from calligram.data.tables import AXES, REGION_TYPES
from calligram.features.regions.chunks import Chunk, read_chunks


def joined(folder: Path, collection: Collection, source: str, settings: Mapping[str, Any]) -> NewRegions:
    """All chunks in ``folder`` together; their features are copied into one file beside them, chunk by chunk."""
    ids = collection.table("images").column("id")
    empty = pa.table({name: pa.array([], kind) for name, kind in REGION_TYPES.items()})
    tables, images, counts, seconds = [empty], [], [], 0.0
    shape: tuple[int, ...] = ()
    for chunk in read_chunks(folder):
        tables.append(_rows(chunk, ids, source))
        images.append(chunk.images)
        counts.append(chunk.counts)
        seconds += float(chunk.seconds)
        shape = chunk.features.shape[1:]
    return NewRegions(
        source,
        settings,
        pa.concat_tables(tables),
        np.concatenate(images) if images else np.zeros(0, dtype=np.int64),
        np.concatenate(counts) if counts else np.zeros(0, dtype=np.int64),
        _joined_features(folder, sum(map(len, images)), shape) if np.prod(shape) and images else None,
        seconds,
    )


def _rows(chunk: Chunk, ids: pa.ChunkedArray, source: str) -> pa.Table:
    """One chunk's regions as rows of the table."""
    image = np.repeat(chunk.images, chunk.counts)
    within = np.concatenate([np.arange(n) for n in chunk.counts]) if len(chunk.counts) else image
    names = ids.take(pa.array(image)).to_pylist()
    columns = {
        "id": [f"{name}/{source}/{number}" for name, number in zip(names, within, strict=True)],
        "image": image,
        **{axis: chunk.boxes[:, place] for place, axis in enumerate(AXES)},
        "source": [source] * len(image),
        "label": _or_null(chunk.labels),
        "attribute": _or_null(chunk.attributes),
        "score": pa.array(chunk.scores, from_pandas=True),
        "identity": [None] * len(image),
    }
    return pa.table({name: pa.array(columns[name]).cast(kind) for name, kind in REGION_TYPES.items()})


def _or_null(texts: NDArray[np.str_]) -> list[str | None]:
    return [str(text) or None for text in texts]


def _joined_features(folder: Path, images: int, shape: tuple[int, ...]) -> Path:
    """The features of all chunks in one ``.npy`` file that can be memory-mapped."""
    file = folder / "joined.npy"
    target = np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=(images, *shape))
    start = 0
    for chunk in read_chunks(folder):
        target[start : start + len(chunk.images)] = chunk.features
        start += len(chunk.images)
    target.flush()
    del target
    return file
