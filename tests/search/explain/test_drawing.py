from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from calligram.evaluation.attention import AttentionShares
from calligram.search.explain.drawing import brightness, draw_attention, draw_words, highlight_regions
from calligram.search.explain.word_importance import WordImportance, WordImportances

CELLS = np.array([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]], dtype=np.float32)
BOXES = np.array([[0, 0, 1, 1], [0.25, 0.25, 0.75, 0.75]], dtype=np.float32)


def middle_brightness(image: Image.Image, box: np.ndarray) -> float:
    """Of the middle of a box, away from what its edges are drawn with."""
    left, top, right, bottom = (float(v) for v in box)
    x, y = (left + right) / 2 * image.width, (top + bottom) / 2 * image.height
    return float(np.asarray(image.convert("L"))[int(y) - 2 : int(y) + 3, int(x) - 2 : int(x) + 3].mean())


@pytest.mark.parametrize("size", [(200, 100), (60, 90)])
@pytest.mark.parametrize("colour", ["black", "white", "green"])
def test_a_cell_with_more_attention_is_brighter(size, colour):
    drawn = highlight_regions(Image.new("RGB", size, colour), CELLS, np.array([0.0, 0.3, 0.6, 1.0], dtype=np.float32))
    shown = [middle_brightness(drawn, box) for box in CELLS]
    assert shown == sorted(shown)
    assert shown[3] > shown[0] + 30
    assert max(drawn.size) == 250


def test_where_boxes_overlap_the_brightest_counts():
    white = Image.new("RGB", (100, 100), "white")
    over = middle_brightness(highlight_regions(white, BOXES, np.array([1.0, 0.2], dtype=np.float32)), BOXES[1])
    alone = middle_brightness(highlight_regions(white, BOXES[:1], np.ones(1, dtype=np.float32)), BOXES[1])
    assert over == pytest.approx(alone, abs=2)


def test_light_that_is_spread_evenly_is_dim():
    """By hand: of twelve regions with a twelfth each, every one shows at a third; of four, one has all."""
    np.testing.assert_allclose(brightness(np.full(12, 1 / 12)), 1 / 3)
    np.testing.assert_allclose(brightness(np.array([0, 0, 1.0, 0])), [0, 0, 1, 0])
    np.testing.assert_allclose(brightness(np.array([0.6, 0.4])), [0.4, 0.4 * 2 / 3])


def explained(words: int, boxes) -> WordImportances:
    given = [WordImportance(f"word{n}", 0, 1, 0.1 * n - 0.2) for n in range(words)]
    shares = np.random.default_rng(0).dirichlet(np.ones(4), words).astype(np.float32)
    return WordImportances(0.5, given, AttentionShares(boxes, shares, shares.T / words, frozenset(("words",))))


@pytest.mark.parametrize("size", [(40, 30), (5, 900), (900, 5), (640, 480)])
@pytest.mark.parametrize("words", [2, 13, 64])
def test_there_is_a_tile_for_each_word_below_the_words_by_weight(size, words):
    picture = Image.effect_noise(size, 90).convert("RGB")
    found = explained(words, CELLS)
    top, sheet = draw_words(picture, found), draw_attention(picture, found)
    assert sheet.width >= top.width
    assert sheet.height > top.height
    more = draw_attention(picture, found, region=2)
    assert more.width * more.height >= sheet.width * sheet.height


def test_without_places_or_attention_words_are_drawn_alone():
    picture, found = Image.new("RGB", (40, 30)), explained(3, None)
    alone = draw_words(picture, found)
    assert draw_attention(picture, found).tobytes() == alone.tobytes()
    assert draw_attention(picture, found._replace(attention=None)).tobytes() == alone.tobytes()


def test_words_that_were_cut_off_have_no_picture():
    picture, found = Image.new("RGB", (40, 30)), explained(4, CELLS)
    assert found.attention is not None
    words = found.attention.words.copy()
    words[1:] = 0
    one = draw_attention(picture, found._replace(attention=found.attention._replace(words=words)))
    assert one.width * one.height < draw_attention(picture, found).width * draw_attention(picture, found).height
