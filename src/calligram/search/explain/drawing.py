"""A sheet of one picture for each word, lit where the word looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from calligram.data.pictures import font as letters
from calligram.evaluation.attention import AttentionShares
from calligram.features.texts.chunker import PhraseSpan
from calligram.search.explain.localize import Box
from calligram.search.explain.word_importance import WordImportance, WordImportances

# Pictures with boxes in distinct colours, and the sentence whose phrases have the same colours.

COLOURS = ("#56b4e9", "#e69f00", "#cc79a7", "#009e73", "#f0e442", "#d55e00", "#0072b2")
"""told apart by the colour-blind too (Okabe and Ito, 2008); the page has the same, in the same order"""
SIDE = 640
"""pictures whose longer side is less are enlarged, for lines and letters to be readable"""


class LabelledBox(NamedTuple):
    """A box to draw."""

    box: Box
    colour: str
    label: str = ""


def colour_of(number: int) -> str:
    """The colour of an item by its place; after the last one they begin again."""
    return COLOURS[number % len(COLOURS)]


def draw_boxes(
    image: Image.Image, boxes: Sequence[LabelledBox], sentence: str = "", spans: Sequence[PhraseSpan] = ()
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


def _with_sentence(picture: Image.Image, sentence: str, spans: Sequence[PhraseSpan]) -> Image.Image:
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


def _words(sentence: str) -> list[PhraseSpan]:
    found, start = [], 0
    for word in sentence.split():
        start = sentence.index(word, start)
        found.append(PhraseSpan(start, start + len(word)))
        start += len(word)
    return found


# A picture above its sentence, whose words are the larger and the redder the more they weigh.

SMALL, LARGE = 15, 30
"""sizes of letters: of a word without weight, and of the one with most"""
LONGEST = 1280
"""side of the picture as it is drawn"""
FOR, AGAINST, NEITHER = (200, 16, 32), (32, 80, 200), (70, 70, 70)


def draw_words(image: Image.Image, found: WordImportances) -> Image.Image:
    """Draw them: red for words that raise the score, blue for those that lower it."""
    factor = min(max(1.0, SIDE / max(image.size)), LONGEST / max(image.size))
    picture = image.convert("RGB").resize((max(1, round(image.width * factor)), max(1, round(image.height * factor))))
    width = max(picture.width, SIDE // 2)
    most = max(abs(word.weight) for word in found.words) or 1.0
    edge, line, gap = 12, 42, 8
    placed, x, y = [], float(edge), edge
    for word in found.words:
        share = abs(word.weight) / most
        font = letters(round(SMALL + share * (LARGE - SMALL)))
        length = font.getlength(word.word)
        if x + length > width - edge and x > edge:
            x, y = float(edge), y + line
        placed.append((x, y + line - gap, word.word, mixed(share, word.weight > 0), font))
        x += length + gap
    sheet = Image.new("RGB", (width, picture.height + y + line + edge), "white")
    sheet.paste(picture, ((width - picture.width) // 2, 0))
    pen = ImageDraw.Draw(sheet)
    for left, bottom, text, colour, font in placed:
        pen.text((left, picture.height + bottom), text, fill=colour, font=font, anchor="ls")
    return sheet


def mixed(share: float, raises: bool) -> tuple[int, int, int]:
    """The colour of a word that weighs this share of the heaviest."""
    end = FOR if raises else AGAINST
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(NEITHER, end, strict=True))
    return red, green, blue


Floats = NDArray[np.float32]

TILE, EDGE, LINE = 250, 14, 30
"""longer side of a word's picture, space around it, and height of what is written above it"""
COLUMNS = 6
"""pictures beside each other at most"""
SPREAD = 3
"""a word that looks at nothing in particular shows at one in so many of full light"""
VEIL, WARM = (16, 18, 26), (255, 176, 32)
REGION = (168, 96, 0)
NAMED = 2
"""words of a region that are named above it"""
OUTLINED = 3
"""boxes of a word that get an outline, where regions overlap"""


class Tile(NamedTuple):
    """A small picture and the line above it."""

    picture: Image.Image
    title: str
    colour: tuple[int, int, int]
    note: str


def draw_attention(image: Image.Image, found: WordImportances, region: int | None = None) -> Image.Image:
    """The picture with its words by weight, then once for each word, lit where it looks.

    Args:
        region: one whose words are shown too.
    """
    top = draw_words(image, found)
    looks = found.attention
    if looks is None or looks.boxes is None:
        return top
    most = max(abs(word.weight) for word in found.words) or 1.0
    tiles = [_region(image, looks, region, found.words)] if region is not None else []
    tiles += [
        _word(image, looks.boxes, row, word, mixed(abs(word.weight) / most, word.weight > 0))
        for word, row in zip(found.words, looks.words, strict=True)
        if row.any()  # not those that were cut off
    ]
    return _below(top, tiles)


def light(shares: Floats) -> Floats:
    """How bright regions are drawn, 0 to 1: by the largest share, unless all are about alike.

    Light that is spread evenly stays dim, or a word that looks nowhere in particular would seem to look everywhere.
    """
    largest = max(float(shares.max(initial=0.0)), SPREAD / max(len(shares), 1))
    bright: Floats = shares / largest
    return bright


def lit(image: Image.Image, boxes: Floats, bright: Floats, longer: int = TILE) -> Image.Image:
    """The picture in the dark but for its regions, each as bright as told; where they overlap, the brightest counts."""
    factor = longer / max(image.size)
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    picture = np.asarray(image.convert("RGB").resize(size, Image.Resampling.LANCZOS), dtype=np.float32)
    shine = np.zeros((size[1], size[0], 1), dtype=np.float32)
    corners = np.round(boxes * np.array([*size, *size])).astype(int)
    for (left, top, right, bottom), value in zip(corners.tolist(), bright.tolist(), strict=True):
        part = shine[top:bottom, left:right]
        np.maximum(part, value, out=part)
    grey = picture.mean(2, keepdims=True) * 0.25 + np.array(VEIL) * 0.5
    warm = picture * 0.62 + np.array(WARM) * 0.38  # colour, not light alone: what is lit may be black
    drawn = Image.fromarray(np.clip(grey + shine**0.8 * (warm - grey), 0, 255).astype(np.uint8))
    if _overlap(boxes):
        pen = ImageDraw.Draw(drawn)
        for place in np.argsort(bright)[-OUTLINED:].tolist():
            tone = tuple(round(80 + bright[place] * (c - 80)) for c in WARM)
            pen.rectangle(corners[place].tolist(), outline=tone, width=1 + round(2 * float(bright[place])))
    return drawn


def _overlap(boxes: Floats) -> bool:
    """Whether regions lie over each other, as boxes do and cells do not."""
    areas = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sum()
    spans = (boxes[:, 2:].max(0) - boxes[:, :2].min(0)).prod() if len(boxes) else 0.0
    return bool(areas > 1.01 * spans)


def _word(image: Image.Image, boxes: Floats, row: Floats, word: WordImportance, colour: tuple[int, int, int]) -> Tile:
    return Tile(lit(image, boxes, light(row)), word.word, colour, f"peak {row.max():.0%}")


def _region(image: Image.Image, looks: AttentionShares, region: int, words: list[WordImportance]) -> Tile:
    """The region alone, and its words, most first."""
    assert looks.boxes is not None
    picture = lit(image, looks.boxes[region : region + 1], np.ones(1, dtype=np.float32))
    shares = looks.regions[region]
    first = [f"{words[place].word} {shares[place]:.0%}" for place in np.argsort(-shares, kind="stable")[:NAMED]]
    return Tile(picture, ", ".join(first), REGION, "")


def _below(top: Image.Image, tiles: list[Tile]) -> Image.Image:
    """Tiles in rows under a picture."""
    if not tiles:
        return top
    width, height = tiles[0].picture.size
    step_x, step_y = max(width, TILE // 2) + EDGE, height + LINE + EDGE
    columns = min(COLUMNS, len(tiles), max(3, math.ceil(math.sqrt(1.6 * len(tiles) * step_y / step_x))))
    rows = math.ceil(len(tiles) / columns)
    whole = max(top.width, columns * step_x + EDGE)
    sheet = Image.new("RGB", (whole, top.height + rows * step_y + EDGE), "white")
    sheet.paste(top, ((whole - top.width) // 2, 0))
    pen, font, small = ImageDraw.Draw(sheet), letters(18), letters(13)
    left = (whole - columns * step_x + EDGE) // 2
    for place, tile in enumerate(tiles):
        x, y = left + place % columns * step_x, top.height + place // columns * step_y
        room = step_x - EDGE - (small.getlength(tile.note) + 8 if tile.note else 0)
        pen.text((x, y + LINE - 7), _cut(tile.title, font, room), fill=tile.colour, font=font, anchor="ls")
        pen.text((x + step_x - EDGE, y + LINE - 7), tile.note, fill=(120, 120, 120), font=small, anchor="rs")
        sheet.paste(tile.picture, (x, y + LINE))
    return sheet


def _cut(text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, room: float) -> str:
    """As much of a text as there is room for."""
    if font.getlength(text) <= room:
        return text
    while text and font.getlength(f"{text}…") > room:
        text = text[:-1]
    return f"{text}…"
