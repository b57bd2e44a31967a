"""Pictures with boxes in distinct colours, and the sentence whose phrases have the same colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageColor, ImageDraw, ImageFont

from calligram.data.fonts import font as letters
from calligram.features.chunker import Span
from calligram.search.localizer import Box

COLOURS = ("#56b4e9", "#e69f00", "#cc79a7", "#009e73", "#f0e442", "#d55e00", "#0072b2")
"""told apart by the colour-blind too (Okabe and Ito, 2008); the page has the same, in the same order"""
SIDE = 640
"""pictures whose longer side is less are enlarged, for lines and letters to be readable"""


class Drawn(NamedTuple):
    """A box to draw."""

    box: Box
    colour: str
    label: str = ""


def colour_of(number: int) -> str:
    """The colour of an item by its place; after the last one they begin again."""
    return COLOURS[number % len(COLOURS)]


def draw_boxes(
    image: Image.Image, boxes: Sequence[Drawn], sentence: str = "", spans: Sequence[Span] = ()
) -> Image.Image:
    """The picture with boxes, and below it the sentence, where there is one, with numbered spans in their colours."""
    factor = max(1.0, SIDE / max(image.size))
    picture = image.convert("RGB").resize((round(image.width * factor), round(image.height * factor)))
    pen, font = ImageDraw.Draw(picture), letters(15)
    for box, colour, label in reversed(boxes):  # the best is drawn last, above the others
        corners = [round(value * factor) for value in box]
        # A dark edge keeps a line visible on a ground of its own colour.
        pen.rectangle([corners[0] - 1, corners[1] - 1, corners[2] + 1, corners[3] + 1], outline="#333333", width=6)
        pen.rectangle(corners, outline=colour, width=4)
        if label:
            _label(pen, (corners[0], corners[1]), label, colour, font)
    return _with_sentence(picture, sentence, spans) if sentence else picture


def _with_sentence(picture: Image.Image, sentence: str, spans: Sequence[Span]) -> Image.Image:
    """The picture above the sentence, broken at words; phrases are numbered and underlined in their colours."""
    font, small, line, edge = letters(19), letters(15), 34, 10
    space, badge = font.getlength(" "), 26
    placed, x, y, last = [], float(edge), edge, None
    for word in _words(sentence):
        number = next((n for n, s in enumerate(spans) if s.start < word.end and word.start < s.end), None)
        first = number is not None and number != last
        width = font.getlength(sentence[word.start : word.end]) + (badge if first else 0)
        if x + width > picture.width - edge and x > edge:
            x, y = float(edge), y + line
        placed.append((x, y, word, number, first))
        x, last = x + width + space, number
    sheet = Image.new("RGB", (picture.width, picture.height + y + line + edge), "white")
    sheet.paste(picture)
    pen = ImageDraw.Draw(sheet)
    for left, top, word, number, first in placed:
        top += picture.height
        if number is not None:
            inside = sentence[word.start : min(word.end, spans[number].end)]
            end = left + (badge if first else 0) + font.getlength(inside)
            reach = 0 if word.end >= spans[number].end else space
            pen.rectangle((left, top + 25, min(end + reach, picture.width), top + 28), fill=colour_of(number))
            if first:
                _label(pen, (round(left), top + 1), str(number + 1), colour_of(number), small)
                left += badge
        pen.text((left, top), sentence[word.start : word.end], fill="black", font=font)
    return sheet


def _label(
    pen: ImageDraw.ImageDraw,
    corner: tuple[int, int],
    text: str,
    colour: str,
    font: ImageFont.ImageFont | ImageFont.FreeTypeFont,
) -> None:
    """A number on its colour, in black or white, whichever is read more easily."""
    left, top = corner
    red, green, blue = ImageColor.getrgb(colour)[:3]
    pen.rectangle((left, top, left + 12 + round(font.getlength(text)), top + 20), fill=colour)
    light = 0.299 * red + 0.587 * green + 0.114 * blue > 110
    pen.text((left + 6, top + 1), text, fill="black" if light else "white", font=font)


def _words(sentence: str) -> list[Span]:
    found, start = [], 0
    for word in sentence.split():
        start = sentence.index(word, start)
        found.append(Span(start, start + len(word)))
        start += len(word)
    return found
