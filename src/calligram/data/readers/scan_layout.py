"""Which image each caption of a SCAN split belongs to, and which row of the array holds that image.

The format leaves it open: arrays and lists of ids may have one row for each image or one for each caption. Nothing here
assumes five captions an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.errors import UserError

Ints = NDArray[np.int64]
FINGERPRINT = 16
"""Leading values of a row that are compared to tell whether it repeats the row before."""


class Layout(NamedTuple):
    """Images of a split in order, by row of the array, and the image of each caption."""

    rows: Ints
    image_of_caption: Ints
    ids: tuple[str, ...] | None


def layout(split: str, captions: int, array: NDArray[np.generic], ids: Sequence[str] | None) -> Layout:
    """Work out the layout of one split.

    Args:
        captions: how many there are.
        array: the features, memory-mapped; only the head of each row is ever read, and only where ids are missing.
        ids: lines of the file of ids, if there is one.

    Raises:
        UserError: when the numbers do not fit together.
    """
    rows = len(array)
    if ids is not None and len(ids) == captions and len(ids) != rows:
        return _by_caption_ids(split, ids, rows)
    if ids is not None and len(ids) not in (rows, captions):
        raise UserError(
            f"{split}: {len(ids)} ids for {rows} rows of features and {captions} captions; "
            "there must be one for each row or one for each caption"
        )
    if rows == captions:
        labels = np.array(ids) if ids is not None else _repeats(array)
        return _joined(labels, ids)
    if captions % rows:
        raise UserError(
            f"{split}: {captions} captions cannot be shared out among {rows} rows of features; "
            f"add {split}_ids.txt with an image id for each caption"
        )
    each = np.repeat(np.arange(rows), captions // rows)
    return Layout(np.arange(rows), each, tuple(ids) if ids is not None else None)


def _by_caption_ids(split: str, ids: Sequence[str], rows: int) -> Layout:
    """An id for each caption and a row for each image."""
    order = {name: number for number, name in enumerate(dict.fromkeys(ids))}
    if len(order) != rows:
        raise UserError(
            f"{split}: {len(order)} different ids for {rows} rows of features; they must be equal in number"
        )
    return Layout(np.arange(rows), np.array([order[name] for name in ids], dtype=np.int64), tuple(order))


def _joined(labels: NDArray[np.generic], ids: Sequence[str] | None) -> Layout:
    """A row for each caption: rows of one label are one image, whose first row is taken."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    rows = np.sort(first).astype(np.int64)
    names = tuple(ids[row] for row in rows) if ids is not None else None
    return Layout(rows, place[inverse.reshape(-1)].astype(np.int64), names)


def _repeats(array: NDArray[np.generic]) -> Ints:
    """A label for each row that changes where a row differs from the one before it."""
    heads = array.reshape(len(array), -1)[:, :FINGERPRINT]
    differs = np.ones(len(array), dtype=bool)
    differs[1:] = (np.asarray(heads[1:]) != np.asarray(heads[:-1])).any(axis=1)
    return np.cumsum(differs).astype(np.int64)
