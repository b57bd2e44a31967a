"""How long to train with few captions (a3vse, Sec. 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from calligram.data.collection import Collection
from calligram.training.stages import Stage

Length = Literal["as-set", "extended", "half"]

EXTENDED = ((0.1, 2.5), (0.2, 2.0), (0.5, 1.2), (1.0, 1.0))
"""the paper's factors on the epochs, by the share of annotations that is left"""


def extended(share: float) -> float:
    """Factor on the epochs at a share of annotations (a3vse, Sec. 4.2).

    The paper gives it at 10%, 20% and 50%; between these it is read off straight lines over the logarithm of the share,
    and below 10% it stays 2.5.
    """
    shares, factors = zip(*EXTENDED, strict=True)
    return float(np.interp(np.log(max(share, 1e-12)), np.log(shares), factors))


def half(share: float) -> float:
    """Factor on the epochs for half of the steps that all annotations would take, at least 1 (a3vse, Sec. 4.2)."""
    return max(1.0, 0.5 / max(share, 1e-12))


def epochs_factor(settings: Any, whole: Collection, sparse: Collection) -> float:
    """By how much the epochs of a run grow.

    Args:
        settings: a recipe's, with ``sparse.length`` and, where an epoch may be one of images, ``epoch_of``.
    """
    if settings.sparse.length == "as-set":
        return 1.0
    before, after = (_amount(collection, "pairs") for collection in (whole, sparse))
    if settings.sparse.length == "extended":
        return extended(after / before)
    unit = getattr(settings, "epoch_of", "pairs")
    return half(_amount(sparse, unit) / _amount(whole, unit))


def lengthened(stages: Sequence[Stage], factor: float) -> tuple[Stage, ...]:
    """Stages with that many times the epochs, each at least as long as it was."""
    return tuple(replace(stage, epochs=round(factor * stage.epochs)) for stage in stages)


def _amount(collection: Collection, unit: str) -> int:
    """Training pairs, or captioned training images."""
    images = collection.numbers("matches", "image")
    of_split = images[np.isin(images, collection.images_in("train"))]
    return len(of_split) if unit == "pairs" else len(np.unique(of_split))
