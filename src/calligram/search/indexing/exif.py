"""EXIF data of a picture file: date, camera and position; and the segments of a JPEG file."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from PIL import ExifTags, Image

ColumnValue = str | int | float | bool | None

EXIF_COLUMNS = ("taken", "year", "camera", "latitude", "longitude")
EXIF_DATE = re.compile(r"(\d{4})[:-](\d{2})[:-](\d{2})[ T](\d{2}):(\d{2}):(\d{2})")
EXIF_SIGNATURES = (b"Exif", b"EXIF", b"eXIf", b"II*\x00", b"MM\x00*")
"""a file without any of them has no EXIF block"""
MAX_CAMERA_CHARACTERS = 100
JPEG_START = b"\xff\xd8"
SCAN_MARKER = 0xDA


def exif_columns(data: bytes) -> dict[str, ColumnValue]:
    """Date, year, camera and position from the EXIF block; missing and invalid values are left out."""
    if not _may_have_exif(data):
        return {}
    try:
        with Image.open(io.BytesIO(data)) as image:
            exif = image.getexif()
            inner = exif.get_ifd(ExifTags.IFD.Exif)
            place = exif.get_ifd(ExifTags.IFD.GPSInfo)
    except Exception:  # a damaged block must not exclude the picture, and decoders raise errors of any type
        return {}
    taken = _taken(inner.get(ExifTags.Base.DateTimeOriginal) or exif.get(ExifTags.Base.DateTime))
    found: dict[str, ColumnValue] = {
        "taken": taken,
        "year": int(taken[:4]) if taken else None,
        "camera": _camera(exif.get(ExifTags.Base.Make), exif.get(ExifTags.Base.Model)),
        "latitude": _degrees(place, ExifTags.GPS.GPSLatitude, ExifTags.GPS.GPSLatitudeRef, "S", 90),
        "longitude": _degrees(place, ExifTags.GPS.GPSLongitude, ExifTags.GPS.GPSLongitudeRef, "W", 180),
    }
    return {name: value for name, value in found.items() if value is not None}


def _may_have_exif(data: bytes) -> bool:
    """Whether the file may have an EXIF block; in a JPEG file, only the part before the pixels is searched."""
    before = next((place for marker, place in segments(data) if marker == SCAN_MARKER), len(data))
    return any(data.find(mark, 0, before) >= 0 for mark in EXIF_SIGNATURES)


def _taken(text: object) -> str | None:
    """``2020:05:01 12:30:00`` in ISO format; None for invalid dates, such as the zeros of a clock that was not set."""
    match = EXIF_DATE.match(str(text)) if text else None
    if match is None:
        return None
    try:
        return datetime(*(int(part) for part in match.groups())).isoformat()  # type: ignore[arg-type]
    except ValueError:
        return None


def _camera(make: object, model: object) -> str | None:
    first, second = (_plain(part) for part in (make, model))
    if second.lower().startswith(first.lower()):  # many model names begin with the name of the maker
        return second or None
    return f"{first} {second}".strip() or None


def _plain(text: object) -> str:
    cleaned = str(text or "").replace("\x00", " ").encode("utf-8", "ignore").decode("utf-8")
    return " ".join(cleaned.split())[:MAX_CAMERA_CHARACTERS]


def _degrees(place: Mapping[int, Any], value: int, side: int, negative: str, most: float) -> float | None:
    try:
        degrees, minutes, seconds = (float(part) for part in place[value])
        found = degrees + minutes / 60 + seconds / 3600
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    if not 0 <= found <= most or (degrees, minutes, seconds) == (0, 0, 0):
        return None
    return round(-found if str(place.get(side, "")).upper().startswith(negative) else found, 6)


def segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Marker and offset of each segment of a JPEG file, up to the first with pixels; none for other files."""
    place = len(JPEG_START) if data.startswith(JPEG_START) else len(data)
    while place + 10 < len(data) and data[place] == 0xFF:
        yield data[place + 1], place
        if data[place + 1] == SCAN_MARKER:
            return
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
