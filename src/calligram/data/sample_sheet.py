"""A picture of a collection: some of its images with their captions, and the phrases' boxes drawn in."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageOps

from calligram.data.collection import Collection
from calligram.data.fonts import font as letters
from calligram.data.pictures import PictureError

Ints = NDArray[np.int64]

COLUMNS, CELL, TALL, GAP, MARGIN = 4, 300, 260, 26, 32
"""Cells are CELL wide, their pictures up to TALL high."""
FONT_SIZE, LINE, LINES = 15, 20, 5
PAPER, MAT, INK, FAINT = "#ffffff", "#f3f4f6", "#1f2328", "#6e7781"
COLOURS = ("#e6484f", "#2f7ed8", "#2a9d5c", "#e08a1e", "#8a4fd0", "#12a5a5")


def sample_sheet(collection: Collection, path: Path, count: int = 12, seed: int = 0) -> None:
    """Write a PNG of ``count`` images drawn at random, those with captions first, each with a caption or two.

    Where a caption's phrases have boxes, the boxes and the words have the same colours.
    """
    rows = _chosen(collection, count, seed)
    columns = min(COLUMNS, len(rows))
    lines = -(-len(rows) // columns)
    tall = TALL + LINES * LINE + 12
    sheet = Image.new(
        "RGB", (2 * MARGIN + columns * (CELL + GAP) - GAP, 2 * MARGIN + lines * (tall + GAP) - GAP), PAPER
    )
    for place, row in enumerate(rows):
        left, top = MARGIN + place % columns * (CELL + GAP), MARGIN + place // columns * (tall + GAP)
        _draw_cell(sheet, collection, int(row), left, top)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, format="PNG")


def _chosen(collection: Collection, count: int, seed: int) -> list[int]:
    """Rows in the order of the collection."""
    order = np.random.default_rng(seed).permutation(len(collection.table("images")))
    captioned = np.isin(order, collection.numbers("matches", "image"))
    return sorted(int(row) for row in np.concatenate([order[captioned], order[~captioned]])[:count])


def _draw_cell(sheet: Image.Image, collection: Collection, row: int, left: int, top: int) -> None:
    draw = ImageDraw.Draw(sheet)
    captions = collection.numbers("matches", "caption")[collection.numbers("matches", "image") == row]
    spans = _grounded_spans(collection, int(captions[0]), row) if len(captions) else []
    draw.rectangle((left, top, left + CELL - 1, top + TALL - 1), fill=MAT)
    try:
        picture = collection.pictures.open(row)
    except PictureError:
        draw.text((left + CELL // 2, top + TALL // 2), "no picture", fill=FAINT, font=letters(FONT_SIZE), anchor="mm")
    else:
        shown = ImageOps.contain(picture, (CELL, TALL), Image.Resampling.LANCZOS)
        x, y = left + (CELL - shown.width) // 2, top + (TALL - shown.height) // 2
        sheet.paste(shown, (x, y))
        for number, (_, _, boxes) in enumerate(spans):
            _draw_boxes(draw, boxes * shown.width / picture.width, (x, y), COLOURS[number % len(COLOURS)])
    _draw_captions(draw, collection, captions, spans, (left, top + TALL + 10))
    if not len(captions):
        name = str(collection.table("images").column("id")[row].as_py())
        draw.text((left, top + TALL + 10), name[-36:], fill=FAINT, font=letters(FONT_SIZE))


Span = tuple[int, int, NDArray[np.float64]]
"""start and end in the caption, boxes (N, 4)"""


def _grounded_spans(collection: Collection, caption: int, image: int) -> list[Span]:
    """Phrases of a caption that have boxes in this image, in order."""
    if not collection.has("groundings"):
        return []
    regions = collection.table("regions")
    of_phrase, of_region = collection.numbers("groundings", "phrase"), collection.numbers("groundings", "region")
    start, end = collection.numbers("phrases", "start"), collection.numbers("phrases", "end")
    here = collection.numbers("regions", "image") == image
    found: list[Span] = []
    for phrase in np.flatnonzero((collection.numbers("phrases", "caption") == caption) & (start >= 0)):
        rows = of_region[of_phrase == phrase]
        rows = rows[here[rows]]
        if len(rows):
            boxes = np.stack([regions.column(axis).to_numpy()[rows] for axis in ("x0", "y0", "x1", "y1")], axis=1)
            found.append((int(start[phrase]), int(end[phrase]), boxes.astype(np.float64)))
    return sorted(found, key=lambda span: span[:2])


def _draw_boxes(draw: ImageDraw.ImageDraw, boxes: NDArray[np.float64], at: tuple[int, int], colour: str) -> None:
    for x0, y0, x1, y1 in boxes + np.tile(np.array(at), 2):
        draw.rectangle((x0, y0, max(x0 + 1, x1 - 1), max(y0 + 1, y1 - 1)), outline=colour, width=2)


def _draw_captions(
    draw: ImageDraw.ImageDraw, collection: Collection, captions: Ints, spans: list[Span], at: tuple[int, int]
) -> None:
    """The first caption with its phrases coloured, and as much of the second as there is room for."""
    column = collection.table("captions").column("text")
    # One blank for each, so that places in the text stay.
    texts = [re.sub(r"\s", " ", str(column[int(c)].as_py())) for c in captions[:2]]
    used = 0
    for number, text in enumerate(texts):
        wrapped = _wrapped(draw, text)
        room = LINES - used
        for line, (start, words) in enumerate(wrapped[:room]):
            cut = line == room - 1 and len(wrapped) > room
            _draw_line(draw, words + (" …" if cut else ""), start, spans if number == 0 else [], (at, used, number))
            used += 1
        if used >= LINES - 1:
            break


def _draw_line(
    draw: ImageDraw.ImageDraw, words: str, start: int, spans: list[Span], place: tuple[tuple[int, int], int, int]
) -> None:
    (left, top), line, number = place
    x = float(left)
    for offset, character in enumerate(words):
        colour = INK if number == 0 else FAINT
        for phrase, (first, last, _) in enumerate(spans):
            if first <= start + offset < last:
                colour = COLOURS[phrase % len(COLOURS)]
        draw.text((x, top + line * LINE), character, fill=colour, font=letters(FONT_SIZE))
        x = left + draw.textlength(words[: offset + 1], font=letters(FONT_SIZE))


def _wrapped(draw: ImageDraw.ImageDraw, text: str) -> list[tuple[int, str]]:
    """Lines that fit a cell, each with the place of its first character in the text."""
    lines: list[tuple[int, str]] = []
    for word in re.finditer(r"\S{1,28}", text):
        start, line = lines[-1] if lines else (0, "")
        longer = text[start : word.end()]
        # Captions of these collections end in " ." often; a full stop alone on a line looks like dirt.
        if line and (
            draw.textlength(longer, font=letters(FONT_SIZE)) <= CELL or (len(word[0]) == 1 and not word[0].isalnum())
        ):
            lines[-1] = (start, longer)
        else:
            lines.append((word.start(), word[0]))
    return lines
