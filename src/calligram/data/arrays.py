"""Feature arrays stored with a collection: memory-mapped, never read whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calligram.errors import UserError

Ints = NDArray[np.int64]


class StoredFeatures:
    """Rows of one or several ``.npy`` files, addressed by the image they belong to."""

    def __init__(self, files: Sequence[Path], row_of_image: Ints) -> None:
        """Args:
        files: arrays of equal row shape, thought of as stacked.
        row_of_image: row in the stack for each image of the collection, -1 where it has none.
        """
        self._arrays = [np.load(file, mmap_mode="r", allow_pickle=False) for file in files]
        shapes = {array.shape[1:] for array in self._arrays}
        if len(shapes) != 1:
            raise UserError(f"feature files differ in shape: {sorted(shapes)}; they must agree but for the first axis")
        self._starts = np.cumsum([0, *(len(array) for array in self._arrays)])
        self.row_of_image = row_of_image
        if row_of_image.size and row_of_image.max() >= self._starts[-1]:
            raise UserError(f"features hold {self._starts[-1]} rows, but row {row_of_image.max()} is asked for")

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one image's features."""
        return tuple(self._arrays[0].shape[1:])

    def take(self, images: Ints) -> NDArray[np.float32]:
        """Features of these image rows, copied out as float32: (N, ...)."""
        rows = self.row_of_image[images]
        if rows.size and rows.min() < 0:
            raise UserError(f"{int((rows < 0).sum())} of {len(rows)} images have no stored features")
        out = np.empty((len(rows), *self.row_shape), dtype=np.float32)
        shard = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(shard):
            where = np.flatnonzero(shard == number)
            out[where] = self._arrays[number][rows[where] - self._starts[number]]
        return out

    def take_parts(self, images: Ints, parts: Ints) -> NDArray[np.floating]:
        """One part of each of these images' features (parts, D), as it is stored: (N, D)."""
        rows = self.row_of_image[images]
        if rows.size and rows.min() < 0:
            raise UserError(f"{int((rows < 0).sum())} of {len(rows)} images have no stored features")
        out = np.empty((len(rows), *self.row_shape[1:]), dtype=self._arrays[0].dtype)
        shard = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(shard):
            where = np.flatnonzero(shard == number)
            out[where] = self._arrays[number][rows[where] - self._starts[number], parts[where]]
        return out
