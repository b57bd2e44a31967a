"""Columns that are computed for the items of a library on request: text inside pictures, and names of places.

Both run after the pictures are encoded, in steps that are committed. So they can be added to a library later, and a
killed run continues.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from calligram.data.pictures import PictureError, decode, map_in_order, worker_threads
from calligram.extras import require
from calligram.progress import Track
from calligram.search.filters.columns import PLACE_COLUMN, TEXT_COLUMN
from calligram.search.indexing.encode import row_batches
from calligram.search.indexing.sources import PictureSource, ScannedPicture
from calligram.search.indexing.writer import LibraryWriter, words_of
from calligram.text import composed

COMMIT_ITEMS = 512
COMMIT_SECONDS = 20.0
"""a commit follows after so many items or so much time"""
READ_AHEAD_PICTURES = 32
MIN_LINE_SCORE = 0.6
"""lines that the reader is less sure of are left out"""
MIN_LINE_CHARACTERS = 2
"""a line of one character is mostly an edge in the picture"""
MAX_TEXT_CHARACTERS = 2000
"""of one picture"""
MAX_TEXT_SIDE = 1600
"""larger pictures are made smaller before they are read"""
MAX_PLACE_KM = 100.0
"""a position that is farther from any town has no name"""
EARTH_RADIUS_KM = 6371.0

Values = Mapping[str, Any]
_free_readers: list[Any] = []
"""readers of text that no thread uses: a reader is for one thread at a time, and loading one takes a second"""


class AddedColumn(Protocol):
    """A column that is computed from the picture or the other columns of an item."""

    name: str

    def applies(self, metadata: Values) -> bool:
        """Whether an item without a value gets one."""
        ...

    def values(self, items: Sequence[tuple[Values, ScannedPicture]], source: PictureSource) -> Iterator[str]:
        """The values of items, in their order; empty where there is nothing."""
        ...


def add_column(
    writer: LibraryWriter,
    number: int,
    source: PictureSource,
    pictures: Sequence[ScannedPicture],
    name: str,
    track: Track,
) -> int:
    """Compute a column for the present items of a source that have no value yet; returns their number.

    Args:
        writer: of the library.
        number: of the source.
        source: of the pictures.
        pictures: of the scan.
        name: of the column.
        track: shows progress.

    Raises:
        UserError: when the package that computes it is not installed.
    """
    column: AddedColumn = TextInPictures() if name == TEXT_COLUMN else PlaceNames()
    by_key = {picture.key: picture for picture in pictures}
    waiting: list[tuple[str, Values, ScannedPicture]] = []
    for batch in writer.tables.column("items", ("id", "key", "metadata"), f"source = {number} and state = 'present'"):
        for row in batch.to_pylist():
            metadata = json.loads(row["metadata"])
            if column.name not in metadata and row["key"] in by_key and column.applies(metadata):
                waiting.append((row["id"], metadata, by_key[row["key"]]))
    values = column.values([(metadata, picture) for _, metadata, picture in waiting], source)
    found = ({"id": id, "value": value} for (id, _, _), value in zip(waiting, values, strict=True))
    label = f"computing the column {column.name}"
    for rows in row_batches(track(found, label, len(waiting)), COMMIT_ITEMS, COMMIT_SECONDS):
        _write(writer, column.name, {row["id"]: row["value"] for row in rows})
    return len(waiting)


def _write(writer: LibraryWriter, name: str, values: Mapping[str, str]) -> None:
    """Write the values into the items, their filters and their words, and commit."""
    writer.kinds.setdefault(name, "text")
    rows = []
    for row in writer.tables.take("items", list(values)).to_pylist():
        metadata = {**json.loads(row["metadata"]), name: values[row["id"]]}
        words = words_of(row["key"], tuple(row["captions"] or ()), metadata.get(TEXT_COLUMN, ""))
        rows.append({**row, "metadata": json.dumps(metadata, ensure_ascii=False), "words": words})
    writer.put_items(rows)
    writer.commit()


class TextInPictures:
    """Reads text inside pictures with RapidOCR, whose models come with its package."""

    name = TEXT_COLUMN

    def __init__(self) -> None:
        """Raises:
        UserError: when the package is not installed.
        """
        self._package = require("rapidocr", extra="ocr", purpose="reading text inside pictures")

    def applies(self, metadata: Values) -> bool:
        """Every picture is read once."""
        return True

    def values(self, items: Sequence[tuple[Values, ScannedPicture]], source: PictureSource) -> Iterator[str]:
        """The text of each picture, one line for each line that was found."""
        with worker_threads() as pool:
            pictures = (picture for _, picture in items)
            yield from map_in_order(pool, lambda one: self._read_from(source, one), pictures, READ_AHEAD_PICTURES)

    def _read_from(self, source: PictureSource, picture: ScannedPicture) -> str:
        try:
            data = source.read(picture)
            return "" if data is None else self.read(decode(data))
        except PictureError:  # it has changed since it was encoded; the next run reads it again
            return ""

    def read(self, image: Image.Image) -> str:
        """The lines of text in an upright RGB image, from top to bottom."""
        if max(image.size) > MAX_TEXT_SIDE:
            image = image.copy()
            image.thumbnail((MAX_TEXT_SIDE, MAX_TEXT_SIDE))
        try:
            reader = _free_readers.pop()
        except IndexError:
            threads = {f"EngineConfig.onnxruntime.{kind}_op_num_threads": 1 for kind in ("intra", "inter")}
            reader = self._package.RapidOCR(params={"Global.log_level": "critical", **threads})
        found = reader(np.ascontiguousarray(np.asarray(image)[:, :, ::-1]))
        _free_readers.append(reader)
        scored = zip(found.txts or (), found.scores if found.txts else (), strict=True)
        lines = (" ".join(composed(text).split()) for text, score in scored if score >= MIN_LINE_SCORE)
        return "\n".join(line for line in lines if len(line) >= MIN_LINE_CHARACTERS)[:MAX_TEXT_CHARACTERS]


class PlaceNames:
    """Names of the nearest town for the coordinates of a picture, from a list of towns that comes with the package."""

    name = PLACE_COLUMN

    def __init__(self) -> None:
        """Raises:
        UserError: when the package is not installed.
        """
        package = require("reverse_geocoder", extra="places", purpose="names of places", package="reverse-geocoder")
        self._search: Callable[..., list[dict[str, str]]] = package.search

    def applies(self, metadata: Values) -> bool:
        """Whether the position of the camera is known."""
        return all(isinstance(metadata.get(name), int | float) for name in ("latitude", "longitude"))

    def values(self, items: Sequence[tuple[Values, ScannedPicture]], source: PictureSource) -> Iterator[str]:
        """Town, region and country, such as "Mitte, Berlin, Germany"."""
        positions = [(float(metadata["latitude"]), float(metadata["longitude"])) for metadata, _ in items]
        if not positions:
            return
        for position, town in zip(positions, self._search(positions, mode=1, verbose=False), strict=True):
            near = kilometres(position, (float(town["lat"]), float(town["lon"]))) <= MAX_PLACE_KM
            parts = [town["name"], town["admin1"], country_names().get(town["cc"], town["cc"])]
            yield ", ".join(dict.fromkeys(part for part in parts if part)) if near else ""


@functools.cache
def country_names() -> Mapping[str, str]:
    """English names of countries by their code of two letters; the list of towns has codes only."""
    lines = (Path(__file__).parent / "countries.txt").read_text(encoding="utf-8").splitlines()
    return {code: name for code, _, name in (line.partition(" ") for line in lines)}


def kilometres(one: tuple[float, float], other: tuple[float, float]) -> float:
    """The distance of two positions in degrees on a sphere (haversine formula).

    >>> round(kilometres((52.52, 13.405), (48.8566, 2.3522)))
    877
    """
    (lat1, lon1), (lat2, lon2) = (tuple(map(math.radians, place)) for place in (one, other))
    half = math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(min(1.0, math.sqrt(half)))
