"""Pictures that come from outside: limited before they are decoded."""

from __future__ import annotations

import io

from PIL import Image, UnidentifiedImageError

from calligram.data.pictures import PictureError, decode
from calligram.serve.guard import RefusedRequest
from calligram.serve.settings import ServerSettings

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""the only decoders that bytes of strangers may reach"""
TYPES = {
    "JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif", "BMP": "image/bmp",
    "AVIF": "image/avif", "TIFF": "image/tiff",
}  # fmt: skip


def read_picture(content: bytes, settings: ServerSettings) -> Image.Image:
    """Decode an upload.

    Raises:
        Refused: when it has too many pixels (its header tells, so a bomb is never unpacked) or is no picture.
    """
    if not content:
        raise RefusedRequest(400, "the picture is empty")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            width, height = opened.size
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        if isinstance(error, Image.DecompressionBombError):
            raise RefusedRequest(413, _too_many(settings)) from None
        raise RefusedRequest(415, f"this is not a picture we can read; known: {', '.join(FORMATS)}") from None
    if width * height > settings.upload_pixels:
        raise RefusedRequest(413, _too_many(settings))
    try:
        return decode(content)
    except PictureError as error:
        raise RefusedRequest(415, f"the picture cannot be read: {error}") from None


def content_type(picture: bytes) -> str:
    """The type of a stored picture by its bytes; a name may lie, and a browser must not guess."""
    try:
        with Image.open(io.BytesIO(picture)) as opened:
            return TYPES.get(opened.format or "", "application/octet-stream")
    except Exception:  # what cannot be opened is still the owner's file, and may be fetched
        return "application/octet-stream"


def _too_many(settings: ServerSettings) -> str:
    return f"a picture may have at most {settings.upload_pixels / 1e6:g} megapixels; send a smaller one"
