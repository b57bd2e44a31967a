"""A picture above its sentence, whose words are the larger and the redder the more they weigh."""

from __future__ import annotations

from PIL import Image, ImageDraw

from calligram.data.fonts import font as letters
from calligram.search.box_drawing import SIDE
from calligram.search.word_weights import Explained

SMALL, LARGE = 15, 30
"""sizes of letters: of a word without weight, and of the one with most"""
LONGEST = 1280
"""side of the picture as it is drawn"""
FOR, AGAINST, NEITHER = (200, 16, 32), (32, 80, 200), (70, 70, 70)


def draw_words(image: Image.Image, found: Explained) -> Image.Image:
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
