"""The nearest texts of images, without those that are near to every image."""

from __future__ import annotations

import torch
from torch import Tensor

from calligram.models.matcher import unit

NEAR = 10
"""images by which a text's nearness to all is told, the number of Conneau et al. (2018)"""
TILE = 8192
"""texts compared at once"""


@torch.no_grad()
def nearest_texts(images: Tensor, texts: Tensor, count: int, *, near: int = NEAR, tile: int = TILE) -> Tensor:
    """(I, count) texts with the highest CSLS of each image, best first: 2 cos(i, t) - r(i) - r(t).

    r is an item's mean cosine with its ``near`` nearest of the other kind (Conneau et al., "Word translation without
    parallel data", 2018). That of the image is the same for all its texts, and left out. Without that of the text a few
    texts would be found for most images.
    """
    images, texts = unit(images), unit(texts)
    near, count = min(near, len(images)), min(count, len(texts))
    best = images.new_full((len(images), count), -torch.inf)
    found = torch.zeros_like(best, dtype=torch.int64)
    for start in range(0, len(texts), tile):
        cosines = images @ texts[start : start + tile].T
        scores = 2 * cosines - cosines.topk(near, dim=0).values.mean(0)
        numbers = torch.arange(start, start + scores.shape[1], device=scores.device).expand_as(scores)
        best, places = torch.cat([best, scores], 1).topk(count, dim=1)
        found = torch.cat([found, numbers], 1).gather(1, places)
    return found
