"""Operations on boxes: arrays of ``x0, y0, x1, y1`` in continuous pixel coordinates.

``x0, y0`` is the upper left corner and ``x1, y1`` the lower right corner. The box of the first pixel of an image is
``0, 0, 1, 1``. Readers convert formats that count pixels from one (Flickr30K Entities).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def area(boxes: Floats) -> Floats:
    """Area of each box; zero where ``x1 < x0`` or ``y1 < y0``."""
    return np.clip(boxes[..., 2] - boxes[..., 0], 0, None) * np.clip(boxes[..., 3] - boxes[..., 1], 0, None)


def iou(first: Floats, second: Floats) -> Floats:
    """Intersection over union of each box of ``first`` (A, 4) with each box of ``second`` (B, 4): (A, B).

    >>> iou(np.array([[0.0, 0, 2, 2]]), np.array([[1.0, 0, 3, 2], [5.0, 5, 6, 6]])).round(3).tolist()
    [[0.333, 0.0]]
    """
    a, b = first[:, None, :], second[None, :, :]
    overlap = area(np.concatenate([np.maximum(a[..., :2], b[..., :2]), np.minimum(a[..., 2:], b[..., 2:])], axis=-1))
    union = area(a) + area(b) - overlap
    return np.divide(overlap, union, out=np.zeros_like(overlap), where=union > 0)


def union_box(boxes: Floats) -> Floats:
    """Smallest box that contains all of ``boxes`` (N, 4): (4,)."""
    if len(boxes) == 0:
        raise ValueError("union_box needs at least one box")
    return np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])


def clip(boxes: Floats, width: float, height: float) -> Floats:
    """Clip boxes (..., 4) to an image of ``width`` x ``height`` pixels."""
    return np.clip(boxes, 0, np.array([width, height, width, height], dtype=boxes.dtype))
