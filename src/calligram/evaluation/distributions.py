"""How far the scores of matching and of other pairs lie apart: two histograms and the area they share."""

from __future__ import annotations

from collections.abc import Mapping
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


# Cross-retrieval rank: how well a matching pair does in the worse of the two directions.

EDGES = (1, 2, 6, 11, 51, 201)
"""first ranks of the intervals that are counted; the paper speaks of 1 and of more than 200"""


def cross_ranks(scores: Floats, matches: Matches) -> NDArray[np.float64]:
    """max(5 r_i - 4, r_t) of every matching pair (aoq, supplement), in the order of ``matches.pairs()``.

    r_i is the pair's rank against pairs of the same text and images that do not match it, r_t against those of the same
    image. The 5, the paper's captions of an image, is the number of texts over that of images, so that both ranks span
    the same range: max(T / I (r_i - 1) + 1, r_t).

    Args:
        scores: (I, T), higher is better.
    """
    visual, text = matches.pairs()
    images, texts = matches.shape
    by_image = pair_ranks(scores, matches)
    transposed = matches.T
    by_text = pair_ranks(np.asarray(scores).T, transposed)
    # The transposed relation lists its pairs by text and then by image.
    order = np.lexsort((visual, text))
    of_text = np.empty(len(text))
    of_text[order] = by_text
    return np.maximum(texts / images * (of_text - 1) + 1, by_image)


def pair_ranks(scores: Floats, matches: Matches) -> Ints:
    """The rank of each matching pair of ``scores`` (Q, C) among its row's columns that do not match.

    A column that does not match and scores the same stands before.
    """
    if scores.shape != matches.shape:
        raise ValueError(f"scores are {scores.shape} but matches are {matches.shape}")
    ranks = []
    for row in range(scores.shape[0]):
        values, own = np.asarray(scores[row]), matches.texts_of(row)
        if not np.isfinite(values).all():
            raise NotFiniteError(f"scores of row {row} are not finite; they cannot be ranked")
        mine = values[own]
        ranks += [np.count_nonzero(values >= v) - np.count_nonzero(mine >= v) + 1 for v in mine]
    return np.array(ranks, dtype=np.int64)


def cross_rank_counts(ranks: NDArray[np.float64]) -> dict[str, int]:
    """How many pairs lie in each interval of ranks."""
    stops = [*(edge - 1 for edge in EDGES[1:]), None]
    names = [f"{a}" if a == b else f"{a}-{b}" if b else f"> {a - 1}" for a, b in zip(EDGES, stops, strict=True)]
    counts = np.histogram(ranks, [*EDGES, np.inf])[0]
    return dict(zip(names, counts.tolist(), strict=True))


def draw_cross_ranks(ranks: Mapping[str, NDArray[np.float64]], file: Path) -> None:
    """Bars of the shares of pairs by interval, for one matcher or several side by side (aoq, supplement, Fig. 6)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axis = figure.subplots()
    width = 0.8 / len(ranks)
    for number, (name, found) in enumerate(ranks.items()):
        counts = cross_rank_counts(found)
        places = np.arange(len(counts)) - 0.4 + width * (number + 0.5)
        shares = [100 * count / max(1, len(found)) for count in counts.values()]
        bars = axis.bar(places, shares, width, label=name)
        axis.bar_label(bars, [f"{share:.0f}%" for share in shares], fontsize=7)
        axis.set_xticks(range(len(counts)), list(counts))
    axis.set(xlabel="cross-retrieval rank of a matching pair", ylabel="share of pairs, %")
    if len(ranks) > 1:
        axis.legend(frameon=False, fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
