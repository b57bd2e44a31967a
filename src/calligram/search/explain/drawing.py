"""Drawings of explanations: boxes of phrases, word importance, and the attention of each word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont, ImageOps

from calligram.data.sheet import letters
from calligram.evaluation.attention import AttentionShares
from calligram.features.texts.chunker import PhraseSpan
from calligram.search.explain.localize import Box
from calligram.search.explain.word_importance import WordImportance, WordImportances

COLOURS = ("#56b4e9", "#e69f00", "#cc79a7", "#009e73", "#f0e442", "#d55e00", "#0072b2")
"""distinguishable with colour blindness (Okabe and Ito, 2008); the page uses the same colours in the same order"""
MIN_DRAWN_PIXELS = 640
"""pictures whose longer side is shorter are enlarged, so that lines and letters are readable"""
MAX_DRAWN_PIXELS = 1280
MIN_FONT_PIXELS, MAX_FONT_PIXELS = 15, 30
"""font sizes of the words with the smallest and the largest weight"""
POSITIVE_COLOUR, NEGATIVE_COLOUR, NEUTRAL_COLOUR = (200, 16, 32), (32, 80, 200), (70, 70, 70)
TILE_PIXELS, MARGIN_PIXELS, TITLE_PIXELS = 250, 14, 30
"""longer side of the picture of a word, space around it, and height of the title above it"""
MAX_COLUMNS = 6
EVEN_ATTENTION_FACTOR = 3
"""a word with even attention to all regions is drawn with this fraction of full brightness, 1 / 3"""
SHADE_COLOUR, LIGHT_COLOUR = (16, 18, 26), (255, 176, 32)
REGION_COLOUR = (168, 96, 0)
REGION_WORDS = 2
"""words in the title of a region"""
OUTLINED_BOXES = 3
"""boxes of a word with an outline, where regions overlap"""

Floats = NDArray[np.float32]


class LabelledBox(NamedTuple):
    """A box to draw."""

    box: Box
    colour: str
    label: str = ""


def colour_of(number: int) -> str:
    """The colour for a number; colours repeat after the last one."""
    return COLOURS[number % len(COLOURS)]


def draw_boxes(
    image: Image.Image, boxes: Sequence[LabelledBox], sentence: str = "", spans: Sequence[PhraseSpan] = ()
) -> Image.Image:
    """Draw boxes on a picture, and below it the sentence with numbered spans in the colours of the boxes."""
    factor = max(1.0, MIN_DRAWN_PIXELS / max(image.size))
    picture = image.convert("RGB").resize((round(image.width * factor), round(image.height * factor)))
    pen, font = ImageDraw.Draw(picture), letters(15)
    for box, colour, label in reversed(boxes):  # the best is drawn last, over the others
        corners = [round(value * factor) for value in box]
        # A dark edge keeps a line visible on a background of the same colour.
        pen.rectangle([corners[0] - 1, corners[1] - 1, corners[2] + 1, corners[3] + 1], outline="#333333", width=6)
        pen.rectangle(corners, outline=colour, width=4)
        if label:
            _label(pen, (corners[0], corners[1]), label, colour, font)
    return _with_sentence(picture, sentence, spans) if sentence else picture


def _with_sentence(picture: Image.Image, sentence: str, spans: Sequence[PhraseSpan]) -> Image.Image:
    """The picture above the sentence, with line breaks; phrases are numbered and underlined in their colours."""
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
    """A label on its colour, in black or white, whichever has more contrast."""
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


def draw_words(image: Image.Image, found: WordImportances) -> Image.Image:
    """Draw a picture above its sentence; words with positive weights are red, with negative weights blue."""
    factor = min(max(1.0, MIN_DRAWN_PIXELS / max(image.size)), MAX_DRAWN_PIXELS / max(image.size))
    picture = image.convert("RGB").resize((max(1, round(image.width * factor)), max(1, round(image.height * factor))))
    width = max(picture.width, MIN_DRAWN_PIXELS // 2)
    most = max(abs(word.weight) for word in found.words) or 1.0
    edge, line, gap = 12, 42, 8
    placed, x, y = [], float(edge), edge
    for word in found.words:
        share = abs(word.weight) / most
        font = letters(round(MIN_FONT_PIXELS + share * (MAX_FONT_PIXELS - MIN_FONT_PIXELS)))
        length = font.getlength(word.word)
        if x + length > width - edge and x > edge:
            x, y = float(edge), y + line
        placed.append((x, y + line - gap, word.word, weight_colour(share, word.weight > 0), font))
        x += length + gap
    sheet = Image.new("RGB", (width, picture.height + y + line + edge), "white")
    sheet.paste(picture, ((width - picture.width) // 2, 0))
    pen = ImageDraw.Draw(sheet)
    for left, bottom, text, colour, font in placed:
        pen.text((left, picture.height + bottom), text, fill=colour, font=font, anchor="ls")
    return sheet


def draw_word_sheet(explained: Sequence[tuple[Image.Image, WordImportances]], columns: int = 2) -> Image.Image:
    """Draw several pictures with their words on one sheet, in rows, below a legend (dual-path, Fig. 11)."""
    tiles = [draw_words(_contained(image), found) for image, found in explained]
    rows = [tiles[first : first + columns] for first in range(0, len(tiles), columns)]
    width = max(tile.width for tile in tiles) + MARGIN_PIXELS
    heights = [max(tile.height for tile in row) + MARGIN_PIXELS for row in rows]
    top = 2 * MARGIN_PIXELS + TITLE_PIXELS
    sheet = Image.new("RGB", (width * min(columns, len(tiles)) + MARGIN_PIXELS, sum(heights) + top), "white")
    legend = "red words raise the score, blue words lower it; larger words change it more"
    ImageDraw.Draw(sheet).text((MARGIN_PIXELS, MARGIN_PIXELS), legend, fill=NEUTRAL_COLOUR, font=letters(15))
    for row, height in zip(rows, heights, strict=True):
        for place, tile in enumerate(row):
            sheet.paste(tile, (MARGIN_PIXELS + place * width + (width - MARGIN_PIXELS - tile.width) // 2, top))
        top += height
    return sheet


def _contained(image: Image.Image) -> Image.Image:
    """The picture on a ground of 4:3, so that the tiles of a sheet have the same size."""
    return ImageOps.pad(image.convert("RGB"), (MIN_DRAWN_PIXELS, MIN_DRAWN_PIXELS * 3 // 4), color="white")


def weight_colour(share: float, raises: bool) -> tuple[int, int, int]:
    """The colour of a word whose weight is this share of the largest weight."""
    end = POSITIVE_COLOUR if raises else NEGATIVE_COLOUR
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(NEUTRAL_COLOUR, end, strict=True))
    return red, green, blue


class AttentionTile(NamedTuple):
    """A small picture and the line above it."""

    picture: Image.Image
    title: str
    colour: tuple[int, int, int]
    note: str


def draw_attention(image: Image.Image, found: WordImportances, region: int | None = None) -> Image.Image:
    """Draw the picture with its words, then one tile for each word with the regions that it attends to.

    Args:
        image: the picture.
        found: importance and attention of the words.
        region: number of a region that gets a tile with its words.
    """
    top = draw_words(image, found)
    attention = found.attention
    if attention is None or attention.boxes is None:
        return top
    most = max(abs(word.weight) for word in found.words) or 1.0
    tiles = [_region(image, attention, region, found.words)] if region is not None else []
    tiles += [
        _word(image, attention.boxes, row, word, weight_colour(abs(word.weight) / most, word.weight > 0))
        for word, row in zip(found.words, attention.words, strict=True)
        if row.any()  # truncated words have no attention
    ]
    return _below(top, tiles)


def brightness(shares: Floats) -> Floats:
    """Brightness of regions, 0 to 1, relative to the largest share.

    Even attention is drawn dim; otherwise, a word without a clear focus would highlight the whole picture.
    """
    largest = max(float(shares.max(initial=0.0)), EVEN_ATTENTION_FACTOR / max(len(shares), 1))
    bright: Floats = shares / largest
    return bright


def highlight_regions(image: Image.Image, boxes: Floats, bright: Floats, longer: int = TILE_PIXELS) -> Image.Image:
    """A darkened picture with highlighted regions; where regions overlap, the brightest counts."""
    factor = longer / max(image.size)
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    picture = np.asarray(image.convert("RGB").resize(size, Image.Resampling.LANCZOS), dtype=np.float32)
    shine = np.zeros((size[1], size[0], 1), dtype=np.float32)
    corners = np.round(boxes * np.array([*size, *size])).astype(int)
    for (left, top, right, bottom), value in zip(corners.tolist(), bright.tolist(), strict=True):
        part = shine[top:bottom, left:right]
        np.maximum(part, value, out=part)
    grey = picture.mean(2, keepdims=True) * 0.25 + np.array(SHADE_COLOUR) * 0.5
    warm = picture * 0.62 + np.array(LIGHT_COLOUR) * 0.38  # colour in addition to brightness: a region may be black
    drawn = Image.fromarray(np.clip(grey + shine**0.8 * (warm - grey), 0, 255).astype(np.uint8))
    if _overlap(boxes):
        pen = ImageDraw.Draw(drawn)
        for place in np.argsort(bright)[-OUTLINED_BOXES:].tolist():
            tone = tuple(round(80 + bright[place] * (c - 80)) for c in LIGHT_COLOUR)
            pen.rectangle(corners[place].tolist(), outline=tone, width=1 + round(2 * float(bright[place])))
    return drawn


def _overlap(boxes: Floats) -> bool:
    """Whether regions overlap, as boxes do and grid cells do not."""
    areas = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sum()
    spans = (boxes[:, 2:].max(0) - boxes[:, :2].min(0)).prod() if len(boxes) else 0.0
    return bool(areas > 1.01 * spans)


def _word(
    image: Image.Image, boxes: Floats, row: Floats, word: WordImportance, colour: tuple[int, int, int]
) -> AttentionTile:
    return AttentionTile(highlight_regions(image, boxes, brightness(row)), word.word, colour, f"peak {row.max():.0%}")


def _region(image: Image.Image, attention: AttentionShares, region: int, words: list[WordImportance]) -> AttentionTile:
    """The tile of a region, with the words that it attends to most."""
    assert attention.boxes is not None
    picture = highlight_regions(image, attention.boxes[region : region + 1], np.ones(1, dtype=np.float32))
    shares = attention.regions[region]
    first = [f"{words[place].word} {shares[place]:.0%}" for place in np.argsort(-shares, kind="stable")[:REGION_WORDS]]
    return AttentionTile(picture, ", ".join(first), REGION_COLOUR, "")


def _below(top: Image.Image, tiles: list[AttentionTile]) -> Image.Image:
    """Tiles in rows below a picture."""
    if not tiles:
        return top
    width, height = tiles[0].picture.size
    step_x, step_y = max(width, TILE_PIXELS // 2) + MARGIN_PIXELS, height + TITLE_PIXELS + MARGIN_PIXELS
    columns = min(MAX_COLUMNS, len(tiles), max(3, math.ceil(math.sqrt(1.6 * len(tiles) * step_y / step_x))))
    rows = math.ceil(len(tiles) / columns)
    whole = max(top.width, columns * step_x + MARGIN_PIXELS)
    sheet = Image.new("RGB", (whole, top.height + rows * step_y + MARGIN_PIXELS), "white")
    sheet.paste(top, ((whole - top.width) // 2, 0))
    pen, font, small = ImageDraw.Draw(sheet), letters(18), letters(13)
    left = (whole - columns * step_x + MARGIN_PIXELS) // 2
    for place, tile in enumerate(tiles):
        x, y = left + place % columns * step_x, top.height + place // columns * step_y
        room = step_x - MARGIN_PIXELS - (small.getlength(tile.note) + 8 if tile.note else 0)
        pen.text((x, y + TITLE_PIXELS - 7), _cut(tile.title, font, room), fill=tile.colour, font=font, anchor="ls")
        pen.text(
            (x + step_x - MARGIN_PIXELS, y + TITLE_PIXELS - 7), tile.note, fill=(120, 120, 120), font=small, anchor="rs"
        )
        sheet.paste(tile.picture, (x, y + TITLE_PIXELS))
    return sheet


def _cut(text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, room: float) -> str:
    """The text, shortened to the available width."""
    if font.getlength(text) <= room:
        return text
    while text and font.getlength(f"{text}…") > room:
        text = text[:-1]
    return f"{text}…"
