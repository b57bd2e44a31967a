"""Small pictures for a page of results."""

from __future__ import annotations

import io

from PIL import Image

LONGER = 320
"""pixels of the longer side, about"""
QUALITY = 80


def thumbnail(image: Image.Image) -> bytes:
    """A JPEG of an upright RGB image, without what the file said about itself.

    It is made smaller by a whole number, which takes a fifth of the time of any other: the longer side has from 3/4 to
    3/2 of ``LONGER`` pixels, or fewer where the picture has.
    """
    factor = round(max(image.size) / LONGER)
    if factor > 1:
        image = image.reduce(factor)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=QUALITY, exif=b"")
    return stream.getvalue()
