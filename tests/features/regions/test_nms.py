from __future__ import annotations

import numpy as np
import pytest

from calligram.features.regions.proposers import non_maximum_suppression


def overlap(a, b):
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    both = width * height
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def naive(boxes, scores, threshold, classes):
    kept = []
    for i in sorted(range(len(boxes)), key=lambda i: (-scores[i], i)):
        if all(
            overlap(boxes[i], boxes[j]) <= threshold or (classes is not None and classes[i] != classes[j]) for j in kept
        ):
            kept.append(i)
    return kept


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("with_classes", [False, True])
def test_suppression_is_the_greedy_loop(seed, with_classes):
    rng = np.random.default_rng(seed)
    start = rng.uniform(0, 30, (60, 2))
    boxes = np.concatenate([start, start + rng.uniform(5, 25, (60, 2))], axis=1).astype(np.float32)
    scores = rng.integers(0, 20, 60).astype(np.float32)  # with ties
    classes = rng.integers(0, 3, 60) if with_classes else None
    assert non_maximum_suppression(boxes, scores, 0.4, classes).tolist() == naive(boxes, scores, 0.4, classes)


def test_nothing_gives_nothing():
    assert len(non_maximum_suppression(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), 0.5)) == 0


def test_equal_boxes_of_two_classes_both_stay():
    boxes = np.array([[0, 0, 2, 2], [0, 0, 2, 2]], dtype=np.float32)
    scores = np.array([0.5, 0.6], dtype=np.float32)
    assert non_maximum_suppression(boxes, scores, 0.5).tolist() == [1]
    assert non_maximum_suppression(boxes, scores, 0.5, np.array([3, 4])).tolist() == [1, 0]
