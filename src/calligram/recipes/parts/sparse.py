"""Training with few captions: the number of epochs (a3vse, Sec. 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calligram.data.collection import Collection
from calligram.data.sparse import extended, half
from calligram.training.stages import Stage


def epochs_factor(settings: Any, whole: Collection, sparse: Collection) -> float:
    """Return the factor on the number of epochs of a run.

    Args:
        settings: of a recipe, with ``sparse.length`` and, for recipes with epochs of images, ``epoch_of``.
    """
    if settings.sparse.length == "as-set":
        return 1.0
    before, after = (_count(collection, "pairs") for collection in (whole, sparse))
    if settings.sparse.length == "extended":
        return extended(after / before)
    unit = getattr(settings, "epoch_of", "pairs")
    return half(_count(sparse, unit) / _count(whole, unit))


def with_more_epochs(stages: Sequence[Stage], factor: float) -> tuple[Stage, ...]:
    """Return stages with ``factor`` times the epochs."""
    return tuple(replace(stage, epochs=round(factor * stage.epochs)) for stage in stages)


def _count(collection: Collection, unit: str) -> int:
    """Count training pairs, or captioned training images."""
    images = collection.numbers("matches", "image")
    of_split = images[np.isin(images, collection.images_in("train"))]
    return len(of_split) if unit == "pairs" else len(np.unique(of_split))
