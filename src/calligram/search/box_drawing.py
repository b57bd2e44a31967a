"""Pictures with boxes in distinct colours, and the sentence whose phrases have the same colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from calligram.features.chunker import Span
from calligram.search.localizer import Box

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#42d4f4", "#f032e6", "#9a6324", "#808000", "#469990")
"""told apart on photographs and on white"""
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
    """The picture with boxes, and below it the sentence, where there is one, with each span in a colour of its own."""
    factor = max(1.0, SIDE / max(image.size))
    picture = image.convert("RGB").resize((round(image.width * factor), round(image.height * factor)))
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(size=15)
    for box, colour, label in reversed(boxes):  # the best is drawn last, above the others
        corners = [round(value * factor) for value in box]
        pen.rectangle(corners, outline=colour, width=4)
        if label:
            around = pen.textbbox((corners[0] + 4, corners[1] + 3), label, font=font)
            pen.rectangle((around[0] - 4, around[1] - 3, around[2] + 4, around[3] + 3), fill=colour)
            pen.text((corners[0] + 4, corners[1] + 3), label, fill="white", font=font)
    return _with_sentence(picture, sentence, spans) if sentence else picture


def _with_sentence(picture: Image.Image, sentence: str, spans: Sequence[Span]) -> Image.Image:
    """The picture above the sentence, broken at words."""
    font, line, edge = ImageFont.load_default(size=19), 28, 10
    placed, x, y = [], float(edge), edge
    for word in _words(sentence):
        width = font.getlength(sentence[word.start : word.end])
        if x + width > picture.width - edge and x > edge:
            x, y = float(edge), y + line
        number = next((n for n, s in enumerate(spans) if s.start <= word.start and word.end <= s.end), None)
        placed.append((x, y, sentence[word.start : word.end], "black" if number is None else colour_of(number)))
        x += width + font.getlength(" ")
    sheet = Image.new("RGB", (picture.width, picture.height + y + line + edge), "white")
    sheet.paste(picture)
    pen = ImageDraw.Draw(sheet)
    for left, top, text, colour in placed:
        pen.text((left, picture.height + top), text, fill=colour, font=font)
    return sheet


def _words(sentence: str) -> list[Span]:
    found, start = [], 0
    for word in sentence.split():
        start = sentence.index(word, start)
        found.append(Span(start, start + len(word)))
        start += len(word)
    return found
