"""How alike the features of different images are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

IMAGES = 100
"""drawn at random, as the paper shows them"""


def correlation(vectors: NDArray[np.floating]) -> Floats:
    """Pearson's correlation between the features of every two images, (N, D) to (N, N) (dual-path, Fig. 4).

    A vector whose entries are all equal has none; it counts as 0, and as 1 with itself.
    """
    centred = np.asarray(vectors, dtype=np.float64)
    centred = centred - centred.mean(axis=1, keepdims=True)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    centred = centred / np.where(length > 0, length, 1)
    found: Floats = np.clip(centred @ centred.T, -1, 1)
    np.fill_diagonal(found, 1)
    return found


def mean_between(correlations: Floats) -> float:
    """Mean size of the correlation between different images; the smaller, the nearer to orthogonal."""
    different = ~np.eye(len(correlations), dtype=bool)
    return float(np.abs(correlations[different]).mean()) if different.any() else 0.0


def draw_correlation(panels: Mapping[str, Floats], file: Path) -> None:
    """Draw correlations side by side, each under its name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.9 + 3.6 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (name, values) in zip(axes, panels.items(), strict=True):
        shown = axis.imshow(values, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
        axis.set(xticks=[], yticks=[])
        axis.set_title(f"{name}\nmean size {mean_between(values):.3f}", fontsize=9)
    figure.colorbar(shown, ax=axes, shrink=0.85)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
