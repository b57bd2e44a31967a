from __future__ import annotations

import numpy as np
import pytest

from calligram.data.boxes import area, clip, iou, union_box


def painted(box: np.ndarray, side: int = 12) -> np.ndarray:
    """The pixels that a box with whole-numbered edges covers."""
    canvas = np.zeros((side, side), dtype=bool)
    x0, y0, x1, y1 = box.astype(int)
    canvas[y0:y1, x0:x1] = True
    return canvas


def random_boxes(rng: np.random.Generator, count: int) -> np.ndarray:
    corners = np.sort(rng.integers(0, 12, (count, 2, 2)), axis=1)
    return np.concatenate([corners[:, 0], corners[:, 1]], axis=1).astype(np.float64)


def test_iou_agrees_with_counting_pixels() -> None:
    rng = np.random.default_rng(0)
    first, second = random_boxes(rng, 9), random_boxes(rng, 7)
    found = iou(first, second)
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            both, either = (painted(a) & painted(b)).sum(), (painted(a) | painted(b)).sum()
            assert found[i, j] == pytest.approx(both / either if either else 0.0)


def test_area_of_an_inverted_box_is_zero() -> None:
    assert area(np.array([[3.0, 0, 1, 5], [0, 0, 2, 3]])).tolist() == [0, 6]


def test_union_box_surrounds_all_boxes() -> None:
    assert union_box(np.array([[1.0, 5, 3, 6], [2, 0, 4, 2]])).tolist() == [1, 0, 4, 6]


def test_union_box_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one box"):
        union_box(np.zeros((0, 4)))


def test_clip_cuts_boxes_to_the_image() -> None:
    assert clip(np.array([[-2.0, 1, 50, 9]]), 10, 8).tolist() == [[0, 1, 10, 8]]
