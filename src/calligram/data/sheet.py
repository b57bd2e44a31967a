"""Sheets: pictures and texts, joined below and next to each other into one picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from calligram.data.pictures import PictureError

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

# Lengths are in pixels.
SHEET_COLOUR, CELL_COLOUR, TEXT_COLOUR, FAINT_COLOUR = "#ffffff", "#f3f4f6", "#1f2328", "#6e7781"
FONT_SIZE, LINE_HEIGHT = 15, 20
BLOCK_GAP, SHEET_EDGE, FRAME_WIDTH = 14, 24, 6


@cache
def letters(size: int) -> Font:
    """A font for drawn text that covers most European languages; the default font of Pillow does not.

    The font file is part of matplotlib. Matplotlib itself is not imported, because its import takes a second.
    """
    found = find_spec("matplotlib")
    file = Path(found.origin or "").parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf" if found else Path()
    return ImageFont.truetype(file, size) if file.is_file() else ImageFont.load_default(size=size)


def paragraph(
    text: str, width: int, size: int, colour: str = TEXT_COLOUR, ground: str = SHEET_COLOUR, lines: int = 4
) -> Image.Image:
    """Return a text in lines that fit the width; a text of more lines is cut."""
    font, high, edge = letters(size), round(1.35 * size), 0 if ground == SHEET_COLOUR else 8
    shown = _wrapped(text, font, width - 2 * edge, lines)
    drawn = Image.new("RGB", (width, len(shown) * high + 2 * edge), ground)
    for number, line in enumerate(shown):
        ImageDraw.Draw(drawn).text((edge, edge + number * high), line, fill=colour, font=font)
    return drawn


def _wrapped(text: str, font: Font, width: int, lines: int) -> list[str]:
    """Return the lines of a text, broken between words, and within a word that is longer than a line."""
    found: list[str] = []
    for paragraph in text.split("\n"):
        found.append("")
        for word in paragraph.split():
            if found[-1] and font.getlength(f"{found[-1]} {word}") > width:
                found.append("")
            found[-1] += f" {word}" if found[-1] else word
            while font.getlength(found[-1]) > width:
                fits = next(n for n in range(len(found[-1]) - 1, 0, -1) if font.getlength(found[-1][:n]) <= width)
                found[-1:] = [found[-1][:fits], found[-1][fits:]]
    return found if len(found) <= lines else [*found[: lines - 1], _fitted(f"{found[lines - 1]} …", font, width)]


def _fitted(line: str, font: Font, width: int) -> str:
    """Return a line, cut where it is too long."""
    if font.getlength(line) <= width:
        return line
    line = line.removesuffix(" …")
    while line and font.getlength(f"{line}…") > width:
        line = line[:-1]
    return f"{line}…"


def picture_cell(
    open_picture: Callable[[], Image.Image], size: tuple[int, int], colour: str = "", note: str | None = None
) -> Image.Image:
    """Return a picture in a cell, with a frame and a note below.

    Args:
        open_picture: may raise a PictureError, which is shown as a missing picture.
        size: width and height of the cell without the note.
        colour: of the frame and of the note; empty for no frame.
    """
    width, height = size
    drawn = Image.new("RGB", (width, height + (0 if note is None else LINE_HEIGHT)), SHEET_COLOUR)
    pen, font, edge = ImageDraw.Draw(drawn), letters(FONT_SIZE - 2), FRAME_WIDTH
    pen.rectangle((0, 0, width - 1, height - 1), fill=CELL_COLOUR)
    try:
        picture = ImageOps.contain(open_picture(), (width - 2 * edge, height - 2 * edge), Image.Resampling.LANCZOS)
    except PictureError:
        pen.text((width // 2, height // 2), "no picture", fill=FAINT_COLOUR, font=font, anchor="mm")
    else:
        left, top = (width - picture.width) // 2, (height - picture.height) // 2
        if colour:
            frame = (left - edge, top - edge, left + picture.width + edge - 1, top + picture.height + edge - 1)
            pen.rectangle(frame, fill=colour)
        drawn.paste(picture, (left, top))
    if note is not None:
        line = _fitted(note, font, width)
        pen.text((width // 2, height + 3), line, fill=colour or FAINT_COLOUR, font=font, anchor="ma")
    return drawn


def with_boxes(
    image: Image.Image, boxes: NDArray[np.floating], colours: Sequence[str], min_side: int = 400
) -> Image.Image:
    """Return a picture with boxes (N, 4); the first one is drawn last, and empty ones are left out.

    Args:
        min_side: a picture whose longer side is shorter is enlarged, so that lines are thin.
    """
    factor = max(1.0, min_side / max(image.size))
    drawn = image.resize((round(factor * image.width), round(factor * image.height)))
    pen, line = ImageDraw.Draw(drawn), max(2, max(drawn.size) // 90)
    for box, colour in reversed(list(zip((factor * boxes).tolist(), colours, strict=True))):
        if box[2] > box[0] and box[3] > box[1]:
            # A dark edge keeps a line visible on a background of the same colour.
            pen.rectangle(box, outline="#222222", width=line + 2)
            pen.rectangle([box[0] + 1, box[1] + 1, box[2] - 1, box[3] - 1], outline=colour, width=line)
    return drawn


def side_by_side(parts: Sequence[Image.Image], gap: int = BLOCK_GAP) -> Image.Image:
    """Join pictures from left to right."""
    size = sum(part.width for part in parts) + gap * (len(parts) - 1), max(part.height for part in parts)
    drawn, x = Image.new("RGB", size, SHEET_COLOUR), 0
    for part in parts:
        drawn.paste(part, (x, 0))
        x += part.width + gap
    return drawn


def stacked(parts: Sequence[Image.Image], gap: int = BLOCK_GAP, margin: int = 0) -> Image.Image:
    """Join pictures from top to bottom."""
    size = max(part.width for part in parts), sum(part.height for part in parts) + gap * (len(parts) - 1)
    drawn, y = Image.new("RGB", (size[0] + 2 * margin, size[1] + 2 * margin), SHEET_COLOUR), margin
    for part in parts:
        drawn.paste(part, (margin, y))
        y += part.height + gap
    return drawn


def save_sheet(blocks: Sequence[Image.Image], file: Path) -> None:
    """Write blocks below each other as one picture."""
    file.parent.mkdir(parents=True, exist_ok=True)
    stacked(blocks, margin=SHEET_EDGE).save(file)
