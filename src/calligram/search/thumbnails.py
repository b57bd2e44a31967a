"""Small pictures for a page of results."""

from __future__ import annotations

import io

from PIL import Image

LONGER = 320
"""pixels of the longer side, about"""
QUALITY = 80
LIGHT = 48_000
"""bytes; a small picture that takes more is compressed again"""
START, SCAN, JFIF, ADOBE, COMMENT = 0xD8, 0xDA, 0xE0, 0xEE, 0xFE
FRAMES = frozenset((0xC0, 0xC1, 0xC2))


def thumbnail(image: Image.Image, data: bytes = b"") -> bytes:
    """A JPEG of an upright RGB image, without what the file said about itself.

    It is made smaller by a whole number, which takes a fifth of the time of any other: the longer side has from 3/4 to
    3/2 of ``LONGER`` pixels, or fewer where the picture has.

    Args:
        image: the picture, decoded.
        data: the file it came from; a small plain JPEG is its own thumbnail.
    """
    factor = round(max(image.size) / LONGER)
    if factor > 1:
        image = image.reduce(factor)
    elif len(data) <= LIGHT and is_plain_jpeg(data):
        return data
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=QUALITY, exif=b"", comment=b"")
    return stream.getvalue()


def is_plain_jpeg(data: bytes) -> bool:
    """Whether a file is a JPEG in grey or colour with nothing in it but the picture: no EXIF, profile or comment."""
    if data[:2] != bytes((0xFF, START)):
        return False
    place = 2
    while place + 10 < len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == SCAN:
            return True
        extra = JFIF <= marker < 0xF0 and marker not in (JFIF, ADOBE)
        if extra or marker == COMMENT or (marker in FRAMES and data[place + 9] not in (1, 3)):
            return False
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return False
