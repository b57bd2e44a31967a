"""Vectors of a library in a Parquet file, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.files import replace_file
from calligram.progress import Track, silent
from calligram.search.library.library import Library

ROW_GROUP_VECTORS = 10_000
FINGERPRINT_KEY, MATCHER_KEY = b"calligram.fingerprint", b"calligram.matcher"
"""keys of the metadata of the file: vectors of two matchers cannot be compared"""


class VectorFile(NamedTuple):
    """Vectors with the ids and paths of their pictures, and the fingerprint of the matcher that made them."""

    ids: list[str]
    paths: list[str]
    vectors: NDArray[np.float32]
    fingerprint: str


def write_vectors(library: Library, file: Path, track: Track = silent) -> int:
    """Write the vectors of all present pictures, in the order of their ids; returns their number.

    The file is complete or absent. Its columns are ``id``, ``path`` (relative to the source), ``hash`` (of the
    content), ``captions`` and ``vector``, of unit length in half precision as the library stores it.

    Raises:
        UserError: when the file exists.
    """
    if file.exists():
        raise UserError(f"{file} exists already; choose another file")
    schema = pa.schema(
        {
            **{"id": pa.string(), "path": pa.string(), "hash": pa.string(), "captions": pa.list_(pa.string())},
            "vector": pa.list_(pa.float32(), library.manifest.dim),
        },
        {FINGERPRINT_KEY: library.manifest.matcher.fingerprint, MATCHER_KEY: library.manifest.matcher.source},
    )
    hashes = {picture.id: picture.hash for picture in library.present_pictures()}
    file.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(file) as partial, pq.ParquetWriter(partial, schema) as writer:
        ids = sorted(hashes)
        starts = range(0, len(ids), ROW_GROUP_VECTORS)
        for start in track(starts, "writing vectors", len(starts)):
            writer.write_table(_rows(library, ids[start : start + ROW_GROUP_VECTORS], hashes, schema))
    return len(hashes)


def _rows(library: Library, ids: list[str], hashes: dict[str, str], schema: pa.Schema) -> pa.Table:
    items = library.items(ids)
    vectors = np.asarray(library.images.vectors(ids), dtype=np.float32)
    columns: dict[str, Any] = {
        **{"id": ids, "path": [str(item.metadata["path"]) for item in items], "hash": [hashes[id] for id in ids]},
        "captions": [list(item.captions) for item in items],
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1]),
    }
    return pa.table(columns, schema=schema)


def read_vectors(file: Path) -> VectorFile:
    """Read a file of ``write_vectors``.

    Raises:
        UserError: when it is no such file.
    """
    try:
        table = pq.read_table(file)
        columns = [table.column(name) for name in ("id", "path", "vector")]
    except (OSError, pa.ArrowException, KeyError) as error:
        raise UserError(f"{file} is not a Parquet file with the columns id, path and vector ({error})") from error
    size = columns[2].type.list_size
    values = np.concatenate([chunk.flatten().to_numpy() for chunk in columns[2].chunks] or [np.empty(0, np.float32)])
    fingerprint = (table.schema.metadata or {}).get(FINGERPRINT_KEY, b"").decode()
    return VectorFile(columns[0].to_pylist(), columns[1].to_pylist(), values.reshape(-1, size), fingerprint)
