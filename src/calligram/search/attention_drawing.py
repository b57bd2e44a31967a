"""A sheet of one picture for each word, lit where the word looks."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from calligram.data.fonts import font as letters
from calligram.evaluation.attention import Attended
from calligram.search.word_drawing import draw_words, mixed
from calligram.search.word_weights import Explained, WordWeight

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


def draw_attention(image: Image.Image, found: Explained, region: int | None = None) -> Image.Image:
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


def _word(image: Image.Image, boxes: Floats, row: Floats, word: WordWeight, colour: tuple[int, int, int]) -> Tile:
    return Tile(lit(image, boxes, light(row)), word.word, colour, f"peak {row.max():.0%}")


def _region(image: Image.Image, looks: Attended, region: int, words: list[WordWeight]) -> Tile:
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
