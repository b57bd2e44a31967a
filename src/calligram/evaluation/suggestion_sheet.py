"""Images to caption on one sheet, each with its number, its id and why."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

from calligram.data.collection import Collection
from calligram.data.fonts import font as letters
from calligram.data.pictures import PictureError
from calligram.data.sample_sheet import CELL, FAINT, FONT_SIZE, GAP, INK, LINE, MARGIN, MAT, PAPER, TALL
from calligram.evaluation.suggesting import Suggestion
from calligram.progress import Track, silent

COLUMNS, LINES = 5, 3


def draw_suggestions(collection: Collection, chosen: Sequence[Suggestion], file: Path, track: Track = silent) -> None:
    """Write the pictures in their order, left to right."""
    columns, tall = max(1, min(COLUMNS, len(chosen))), TALL + LINES * LINE + 12
    lines = max(1, -(-len(chosen) // columns))
    size = (2 * MARGIN + columns * (CELL + GAP) - GAP, 2 * MARGIN + lines * (tall + GAP) - GAP)
    sheet = Image.new("RGB", size, PAPER)
    draw, font = ImageDraw.Draw(sheet), letters(FONT_SIZE)
    for place, suggestion in track(list(enumerate(chosen)), "drawing", len(chosen)):
        left, top = MARGIN + place % columns * (CELL + GAP), MARGIN + place // columns * (tall + GAP)
        draw.rectangle((left, top, left + CELL - 1, top + TALL - 1), fill=MAT)
        try:
            picture = ImageOps.contain(collection.pictures.open(suggestion.row), (CELL, TALL))
        except PictureError:
            draw.text((left + CELL // 2, top + TALL // 2), "no picture", fill=FAINT, font=font, anchor="mm")
        else:
            sheet.paste(picture, (left + (CELL - picture.width) // 2, top + (TALL - picture.height) // 2))
        draw.text((left, top + TALL + 8), f"{place + 1}  {suggestion.image[-30:]}", fill=INK, font=font)
        for line, words in enumerate(textwrap.wrap(suggestion.why, 38)[: LINES - 1]):
            draw.text((left, top + TALL + 8 + (line + 1) * LINE), words, fill=FAINT, font=font)
    file.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(file)
