"""Non-maximum suppression: of boxes that overlap much, the best."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calligram.data.boxes import iou

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def suppress(boxes: Floats, scores: Floats, threshold: float, classes: Ints | None = None) -> Ints:
    """Indices of the boxes that no better kept box overlaps by more than ``threshold``, best first.

    Equal scores keep their order. With ``classes`` only boxes of the same class suppress each other.
    """
    order = np.argsort(-scores, kind="stable").astype(np.int64)
    ranked = boxes[order].astype(np.float32)
    rivals = iou(ranked, ranked) > threshold
    if classes is not None:
        rivals &= classes[order][:, None] == classes[order][None, :]
    alive = np.ones(len(order), dtype=bool)
    for place in range(len(order)):
        if alive[place]:
            alive[place + 1 :] &= ~rivals[place, place + 1 :]
    return order[alive]
