"""What a library keeps of images for a second stage, from rows of its table to tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from calligram.models.matcher import Encoded, stack


def encodings(rows: pa.Table, order: Sequence[int]) -> Encoded:
    """Rows of the table ``parts`` in some order; parts in half precision on disk and single in use.

    Images of one matcher mostly have equally many parts. Those are read as one array, straight from the table's memory:
    a hundred images by themselves take three times as long.
    """
    counts = rows.column("count").to_numpy()
    if len(set(counts.tolist())) > 1:
        return stack([encodings(rows.slice(place, 1), [0]) for place in order])
    chosen = np.asarray(order, dtype=np.int64)
    vectors = torch.from_numpy(_joined(rows, "vector", np.dtype(np.float32))[chosen])
    if not len(counts) or not counts[0]:
        return Encoded(vectors)
    shape = (len(counts), int(counts[0]), -1)
    parts = _joined(rows, "parts", np.dtype(np.float16)).reshape(shape)
    mask = _joined(rows, "mask", np.dtype(np.bool_))
    return Encoded(vectors, torch.from_numpy(parts[chosen]).float(), torch.from_numpy(mask[chosen]))


def _joined(rows: pa.Table, name: str, kind: np.dtype[np.generic]) -> NDArray[np.generic]:
    """A binary column whose values have one length, as (N, numbers)."""
    pieces = []
    for chunk in rows.column(name).chunks:
        if len(chunk):
            _, offsets, data = chunk.buffers()
            ends = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
            pieces.append(np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].view(kind).reshape(len(chunk), -1))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else np.empty((0, 0), kind)
