"""What a picture file says about itself: when and where it was taken, and by which camera."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from PIL import ExifTags, Image

# The parts of a JPEG file before its picture: where EXIF blocks, profiles and comments are.

START = b"\xff\xd8"
SCAN = 0xDA


def segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Marker and place of each segment up to the first with pixels; nothing for other files, or where it breaks off."""
    place = len(START) if data.startswith(START) else len(data)
    while place + 10 < len(data) and data[place] == 0xFF:
        yield data[place + 1], place
        if data[place + 1] == SCAN:
            return
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")


Value = str | int | float | bool | None

TAKEN = re.compile(r"(\d{4})[:-](\d{2})[:-](\d{2})[ T](\d{2}):(\d{2}):(\d{2})")
MARKS = (b"Exif", b"EXIF", b"eXIf", b"II*\x00", b"MM\x00*")
"""without any of which there is no EXIF block, and the file need not be opened again"""
FACTS = ("taken", "year", "camera", "latitude", "longitude")


def facts(data: bytes) -> dict[str, Value]:
    """Date, year, camera and position from the EXIF block; what is missing or makes no sense is left out."""
    if not _may_have_exif(data):
        return {}
    try:
        with Image.open(io.BytesIO(data)) as image:
            exif = image.getexif()
            inner = exif.get_ifd(ExifTags.IFD.Exif)
            place = exif.get_ifd(ExifTags.IFD.GPSInfo)
    except Exception:  # a damaged block must not cost the picture, and readers raise whatever they stumble over
        return {}
    taken = _taken(inner.get(ExifTags.Base.DateTimeOriginal) or exif.get(ExifTags.Base.DateTime))
    found: dict[str, Value] = {
        "taken": taken,
        "year": int(taken[:4]) if taken else None,
        "camera": _camera(exif.get(ExifTags.Base.Make), exif.get(ExifTags.Base.Model)),
        "latitude": _degrees(place, ExifTags.GPS.GPSLatitude, ExifTags.GPS.GPSLatitudeRef, "S", 90),
        "longitude": _degrees(place, ExifTags.GPS.GPSLongitude, ExifTags.GPS.GPSLongitudeRef, "W", 180),
    }
    return {name: value for name, value in found.items() if value is not None}


def _may_have_exif(data: bytes) -> bool:
    """Whether it is worth opening the file again. Of a JPEG only what comes before the pixels is looked through."""
    before = next((place for marker, place in segments(data) if marker == SCAN), len(data))
    return any(data.find(mark, 0, before) >= 0 for mark in MARKS)


def _taken(text: object) -> str | None:
    """``2020:05:01 12:30:00`` as ISO; cameras whose clock was never set write zeros."""
    match = TAKEN.match(str(text)) if text else None
    if match is None:
        return None
    try:
        return datetime(*(int(part) for part in match.groups())).isoformat()  # type: ignore[arg-type]
    except ValueError:
        return None


def _camera(make: object, model: object) -> str | None:
    first, second = (_plain(part) for part in (make, model))
    if second.lower().startswith(first.lower()):  # many models begin with their maker's name
        return second or None
    return f"{first} {second}".strip() or None


def _plain(text: object) -> str:
    cleaned = str(text or "").replace("\x00", " ").encode("utf-8", "ignore").decode("utf-8")
    return " ".join(cleaned.split())[:100]


def _degrees(place: Mapping[int, Any], value: int, side: int, negative: str, most: float) -> float | None:
    try:
        degrees, minutes, seconds = (float(part) for part in place[value])
        found = degrees + minutes / 60 + seconds / 3600
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    if not 0 <= found <= most or (degrees, minutes, seconds) == (0, 0, 0):
        return None
    return round(-found if str(place.get(side, "")).upper().startswith(negative) else found, 6)
