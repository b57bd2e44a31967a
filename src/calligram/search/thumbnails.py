"""Small pictures for a page of results."""

from __future__ import annotations

import io

from PIL import Image

LONGEST = 320
"""pixels of the longer side"""
QUALITY = 80


def thumbnail(image: Image.Image) -> bytes:
    """A JPEG of an upright RGB image, no side longer than ``LONGEST`` and without what the file said about itself."""
    scale = min(1.0, LONGEST / max(image.size))
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    if size != image.size:
        image = image.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=QUALITY, exif=b"")
    return stream.getvalue()
