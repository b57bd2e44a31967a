"""Visual items, texts and the matches between them: the input of training and evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calligram.data.matches import Matches
from calligram.errors import UserError
from calligram.files import text_hash
from calligram.text import caption_key

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class StoredFeatures:
    """Feature arrays of a collection, addressed by image. The ``.npy`` files are memory-mapped, never read whole."""

    def __init__(self, files: Sequence[Path], row_of_image: Ints) -> None:
        """Args:
        files: arrays of equal row shape, stacked along the first axis.
        row_of_image: row in the stack for each image of the collection; -1 for an image without features.
        """
        self._arrays = [np.load(file, mmap_mode="r", allow_pickle=False) for file in files]
        shapes = {array.shape[1:] for array in self._arrays}
        if len(shapes) != 1:
            raise UserError(f"feature files differ in shape: {sorted(shapes)}; all axes but the first must agree")
        self._starts = np.cumsum([0, *(len(array) for array in self._arrays)])
        self.row_of_image = row_of_image
        if row_of_image.size and row_of_image.max() >= self._starts[-1]:
            raise UserError(
                f"the feature files hold {self._starts[-1]} rows, but row {row_of_image.max()} is requested"
            )

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of the features of one image."""
        return tuple(self._arrays[0].shape[1:])

    def take(self, images: Ints) -> NDArray[np.float32]:
        """A float32 copy of the features of these images: (N, ...)."""
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
        """One part of the features (parts, D) of each image, in the stored type: (N, D)."""
        rows = self.row_of_image[images]
        if rows.size and rows.min() < 0:
            raise UserError(f"{int((rows < 0).sum())} of {len(rows)} images have no stored features")
        out = np.empty((len(rows), *self.row_shape[1:]), dtype=self._arrays[0].dtype)
        shard = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(shard):
            where = np.flatnonzero(shard == number)
            out[where] = self._arrays[number][rows[where] - self._starts[number], parts[where]]
        return out


class Pictures(Protocol):
    """Opens images by row number."""

    cache: Path
    """folder for data that is computed from these pictures"""

    def read(self, row: int) -> bytes:
        """The bytes of the picture file."""
        ...

    def open(self, row: int, side: int = 0) -> Image.Image:
        """The decoded image: upright, RGB; a large one perhaps reduced, to sides of at least ``side`` pixels."""
        ...


@dataclass(frozen=True)
class Visuals:
    """Images, or regions of images, in a fixed order."""

    ids: tuple[str, ...]
    pictures: Pictures
    rows: Ints
    """(N,) row of the image of each item in ``pictures``"""
    boxes: Floats | None = None
    """(N, 4) for regions, in pixels of the image; None for whole images"""
    features: Mapping[str, StoredFeatures] = field(default_factory=dict)
    """feature arrays stored with the collection, addressed by image row"""

    def __len__(self) -> int:
        return len(self.ids)

    def open(self, index: int, side: int = 0) -> Image.Image:
        """The image, perhaps reduced to sides of at least ``side`` pixels, or the crop of a region."""
        image = self.pictures.open(int(self.rows[index]), side if self.boxes is None else 0)
        if self.boxes is None:
            return image
        x0, y0, x1, y1 = self.boxes[index]
        left, top = int(np.floor(x0)), int(np.floor(y0))
        return image.crop((left, top, max(left + 1, int(np.ceil(x1))), max(top + 1, int(np.ceil(y1)))))

    def select(self, index: Ints) -> Visuals:
        """The items at these positions, in this order."""
        return Visuals(
            tuple(self.ids[i] for i in index),
            self.pictures,
            self.rows[index],
            None if self.boxes is None else self.boxes[index],
            self.features,
        )


@dataclass(frozen=True)
class Texts:
    """Captions, phrases or pseudo-sentences, in a fixed order."""

    ids: tuple[str, ...]
    strings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, index: Ints) -> Texts:
        """The texts at these positions, in this order."""
        return Texts(tuple(self.ids[i] for i in index), tuple(self.strings[i] for i in index))


@dataclass(frozen=True)
class Pairing:
    """Visual items, texts, and the matches between them."""

    visuals: Visuals
    texts: Texts
    matches: Matches
    also_true: Matches | None = None
    """every pair whose text is true of its image, where the source knows it (scenes); a superset of ``matches``"""

    def __post_init__(self) -> None:
        if self.matches.shape != (len(self.visuals), len(self.texts)):
            raise ValueError(
                f"matches are {self.matches.shape} for {len(self.visuals)} x {len(self.texts)} items; "
                "the shape must be (visual items, texts)"
            )

    @property
    def fingerprint(self) -> str:
        """A hash of the ids of the visual items, the strings of the texts, and the matches."""
        content = [list(map(str, self.visuals.ids)), list(self.texts.strings), np.stack(self.matches.pairs()).tolist()]
        return text_hash(json.dumps(content), 12)

    def select(self, visuals: Sequence[int] | Ints) -> Pairing:
        """These visual items with the texts that match any of them."""
        chosen = np.asarray(visuals, dtype=np.int64)
        rows, columns = self.matches.pairs()
        texts = np.unique(columns[np.isin(rows, chosen)])
        return Pairing(
            self.visuals.select(chosen),
            self.texts.select(texts),
            self.matches.select(chosen, texts),
            None if self.also_true is None else self.also_true.select(chosen, texts),
        )

    def with_unmatched_texts(self, texts: Texts) -> Pairing:
        """The same pairs, and after their texts others that match nothing."""
        joined = Texts((*self.texts.ids, *texts.ids), (*self.texts.strings, *texts.strings))

        def wider(matches: Matches) -> Matches:
            return Matches(*matches.pairs(), (len(self.visuals), len(joined)))

        also = None if self.also_true is None else wider(self.also_true)
        return Pairing(self.visuals, joined, wider(self.matches), also)

    def join_equal_texts(self) -> Pairing:
        """Merge texts with equal words into one text that matches all their images.

        Without this, two images with the caption "a dog runs" are false negatives of each other in training.
        """
        keys = [caption_key(string) for string in self.texts.strings]
        _, first, inverse = np.unique(np.array(keys, dtype=object), return_index=True, return_inverse=True)
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))

        def joined(matches: Matches) -> Matches:
            visual, text = matches.pairs()
            return Matches(visual, place[inverse[text]], (len(self.visuals), len(order)))

        also = None if self.also_true is None else joined(self.also_true)
        return Pairing(self.visuals, self.texts.select(np.sort(first)), joined(self.matches), also)
