"""The parts of a JPEG file before its picture: where EXIF blocks, profiles and comments are."""

from __future__ import annotations

from collections.abc import Iterator

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
