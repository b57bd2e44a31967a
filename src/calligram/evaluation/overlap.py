"""How far the scores of matching and of other pairs lie apart: two histograms and the area they share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.errors import NotFiniteError

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]

BINS = 100
"""steps of 0.02 of a cosine; the paper does not say how wide its own are"""
BLOCK = 1 << 22
"""scores counted at a time"""


@dataclass(frozen=True)
class Overlap:
    """Counts of pairs by score."""

    edges: NDArray[np.float64]
    """(B + 1,) of the bins; the last one includes its upper edge"""
    positive: Ints
    """(B,) matching pairs"""
    negative: Ints
    """(B,) other pairs, without those known to be true"""
    positive_mean: float
    """mean score of matching pairs"""
    negative_mean: float

    @property
    def s(self) -> float:
        """S, the integral over x of min(P(x), Q(x)) (dual-path, Eq. 10), P and Q being the two histograms as densities.

        0 where no bin holds pairs of both kinds, 1 where both are spread alike.
        """
        return float(np.minimum(self.positive / self.positive.sum(), self.negative / self.negative.sum()).sum())

    def as_dict(self) -> dict[str, float]:
        """For JSON, without the histograms."""
        return {"s": self.s, "positive_mean": self.positive_mean, "negative_mean": self.negative_mean}


def score_overlap(
    scores: Floats,
    matches: Matches,
    *,
    also_true: Matches | None = None,
    span: tuple[float, float] | None = (-1.0, 1.0),
    bins: int = BINS,
) -> Overlap | None:
    """Count all pairs of a score matrix (I, T) by score, a block of rows at a time; None when there is but one kind.

    What S is the overlap of (dual-path, Eq. 10, Fig. 5).

    Args:
        also_true: pairs that are true without matching; they count as neither.
        span: scores between which the bins lie, the cosine's by default; None for the scores' own range. What lies
            outside by rounding goes into the outermost bins.
    """
    if scores.shape != matches.shape:
        raise ValueError(f"scores are {scores.shape} but matches are {matches.shape}")
    left_out = None if also_true is None else also_true.minus(matches)
    away = 0 if left_out is None else len(left_out)
    if not len(matches) or len(matches) + away == scores.shape[0] * scores.shape[1]:
        return None
    low, high = span or _range(scores)
    every, sums = np.zeros(bins, dtype=np.int64), 0.0
    for block in _blocks(scores):
        if not np.isfinite(block).all():
            raise NotFiniteError("some scores are not finite; they cannot be counted")
        every += _counts(block, low, high, bins)
        sums += float(block.sum(dtype=np.float64))
    own, own_sum = _of_pairs(scores, matches, low, high, bins)
    gone, gone_sum = _of_pairs(scores, left_out, low, high, bins) if left_out is not None else (0, 0.0)
    negative = every - own - gone
    return Overlap(
        np.linspace(low, high, bins + 1), own, negative,
        own_sum / len(matches), (sums - own_sum - gone_sum) / int(negative.sum()),
    )  # fmt: skip


def _blocks(scores: Floats) -> list[Floats]:
    step = max(1, BLOCK // max(1, scores.shape[1]))
    return [np.asarray(scores[first : first + step]) for first in range(0, len(scores), step)]


def _range(scores: Floats) -> tuple[float, float]:
    low = min(float(block.min()) for block in _blocks(scores))
    high = max(float(block.max()) for block in _blocks(scores))
    return low, high if high > low else low + 1.0


def _counts(values: Floats, low: float, high: float, bins: int) -> Ints:
    # In double precision, so that a score falls into the same bin wherever it is counted.
    place = np.floor((values.ravel().astype(np.float64) - low) * (bins / (high - low)))
    return np.bincount(np.clip(place, 0, bins - 1).astype(np.int64), minlength=bins)


def _of_pairs(scores: Floats, pairs: Matches, low: float, high: float, bins: int) -> tuple[Ints, float]:
    values = np.asarray(scores[pairs.pairs()])
    return _counts(values, low, high, bins), float(values.sum(dtype=np.float64))


def draw_overlap(found: Overlap, file: Path, title: str = "") -> None:
    """Draw both histograms as densities, with S (dual-path, Fig. 5)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axis = figure.subplots()
    width = np.diff(found.edges)
    for counts, name, colour, average in (
        (found.negative, "other pairs", "tab:red", found.negative_mean),
        (found.positive, "matching pairs", "tab:green", found.positive_mean),
    ):
        density = counts / counts.sum() / width
        axis.stairs(density, found.edges, fill=True, color=colour, alpha=0.45, label=f"{name}, mean {average:.3f}")
    seen = np.flatnonzero(found.positive + found.negative)
    axis.set_xlim(found.edges[seen[0]], found.edges[seen[-1] + 1])
    axis.set(xlabel="score", ylabel="density", title=f"{title + ': ' if title else ''}S = {found.s:.4f}")
    axis.legend(frameon=False, fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
