"""Where the parts of a picture lie that a matcher of parts sees: cells of a grid, or boxes stored with a collection."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from calligram.data.collection import Collection
from calligram.data.grounding import feature_boxes
from calligram.features.backbone_input import BackboneInput
from calligram.features.inputs import ImageInput
from calligram.features.pixels import PixelInput
from calligram.features.stored import StoredInput

Floats = NDArray[np.float32]


def cells(pixels: PixelInput, size: tuple[int, int], count: int) -> Floats | None:
    """The cells of a square grid in reading order: left, top, right and bottom in shares of the picture, (count, 4).

    They divide evenly what is seen of the picture: all of it, or its middle square. None where ``count`` is no square.

    Args:
        size: width and height of the picture.
    """
    side = math.isqrt(count)
    if side * side != count or min(size) < 1:
        return None
    left, top, right, bottom = pixels.kept(*size)
    xs, ys = np.linspace(left, right, side + 1) / size[0], np.linspace(top, bottom, side + 1) / size[1]
    y, x = (axis.ravel() for axis in np.indices((side, side)))
    return np.stack([xs[x], ys[y], xs[x + 1], ys[y + 1]], axis=1).astype(np.float32)


def cells_of(images: ImageInput, size: tuple[int, int], count: int) -> Floats | None:
    """The cells of a picture as this input sees it; None where its parts are no cells.

    See also: ``boxes_of``, for stored features.
    """
    pixels = images.pixels if isinstance(images, BackboneInput) else images
    if not isinstance(pixels, PixelInput) or (isinstance(images, BackboneInput) and images.parts != "grid"):
        return None
    return cells(pixels, size, count)


def boxes_of(images: StoredInput, collection: Collection, row: int) -> Floats | None:
    """The boxes of an image's stored features in shares of the picture, (R, 4); None where they have none."""
    boxes = feature_boxes(collection, images.name, row)
    size = [int(collection.numbers("images", side)[row]) for side in ("width", "height")]
    if not len(boxes) or min(size) < 1:
        return None
    shares: Floats = np.clip(boxes / np.array([*size, *size]), 0, 1).astype(np.float32)
    return shares
