"""Distributions of scores and ranks: overlap of the scores of matching and other pairs, and cross-retrieval ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.errors import NotFiniteError
from calligram.files import replace_file

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]

HISTOGRAM_BINS = 100
"""number of bins, 0.02 wide for cosines; the paper does not give its bin width"""
BLOCK_SCORES = 1 << 22
"""number of scores counted at once"""


@dataclass(frozen=True)
class Overlap:
    """Histograms of the scores of matching pairs and of other pairs."""

    edges: NDArray[np.float64]
    """(B + 1,) edges of the bins; the last bin includes its upper edge"""
    positive: Ints
    """(B,) number of matching pairs"""
    negative: Ints
    """(B,) number of other pairs, without pairs that are known to be true"""
    positive_mean: float
    """mean score of matching pairs"""
    negative_mean: float

    @property
    def s(self) -> float:
        """S, the integral over x of min(P(x), Q(x)) (dual-path, Eq. 10), P and Q being the two histograms as densities.

        0 where no bin holds pairs of both kinds, 1 where both distributions are equal.
        """
        return float(np.minimum(self.positive / self.positive.sum(), self.negative / self.negative.sum()).sum())

    def as_dict(self) -> dict[str, float]:
        """Return JSON values, without the histograms."""
        return {"s": self.s, "positive_mean": self.positive_mean, "negative_mean": self.negative_mean}


def score_overlap(
    scores: Floats,
    matches: Matches,
    *,
    also_true: Matches | None = None,
    span: tuple[float, float] | None = (-1.0, 1.0),
    bins: int = HISTOGRAM_BINS,
) -> Overlap | None:
    """Return the histograms of the scores of matching pairs and of other pairs; None where one kind is missing.

    Their overlap is S (dual-path, Eq. 10, Fig. 5).

    Args:
        scores: (I, T).
        also_true: pairs that are true without matching; they are left out.
        span: range of the bins, that of the cosine by default; None for the range of the scores. Scores outside the
            range, by rounding, are counted in the outermost bins.
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
            raise NotFiniteError("some scores are not finite (NaN or infinite), so their histogram cannot be computed")
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
    step = max(1, BLOCK_SCORES // max(1, scores.shape[1]))
    return [np.asarray(scores[first : first + step]) for first in range(0, len(scores), step)]


def _range(scores: Floats) -> tuple[float, float]:
    low = min(float(block.min()) for block in _blocks(scores))
    high = max(float(block.max()) for block in _blocks(scores))
    return low, high if high > low else low + 1.0


def _counts(values: Floats, low: float, high: float, bins: int) -> Ints:
    # In double precision, so that a score falls into the same bin in both histograms.
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
    with replace_file(file, keep_suffix=True) as partial:
        figure.savefig(partial, dpi=110)


RANK_EDGES = (1, 2, 6, 11, 51, 201)
"""first rank of each interval; the paper has the intervals 1 and above 200"""


def cross_ranks(scores: Floats, matches: Matches) -> NDArray[np.float64]:
    """Return max(5 r_i - 4, r_t) of every matching pair (aoq, supplement), in the order of ``matches.pairs()``.

    r_i is the rank of the pair among the images that do not match its text, r_t among the texts that do not match its
    image. The 5 is the number of captions per image in the paper. Here it is the number of texts over the number of
    images, so that both ranks have the same range: max(T / I (r_i - 1) + 1, r_t).

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
    """Return the rank of each matching pair of ``scores`` (Q, C) among the columns of its row that do not match.

    A column that does not match and has an equal score is ranked before it.
    """
    if scores.shape != matches.shape:
        raise ValueError(f"scores are {scores.shape} but matches are {matches.shape}")
    ranks = []
    for row in range(scores.shape[0]):
        values, own = np.asarray(scores[row]), matches.texts_of(row)
        if not np.isfinite(values).all():
            raise NotFiniteError(f"scores of row {row} are not finite (NaN or infinite), so they cannot be ranked")
        mine = values[own]
        ranks += [np.count_nonzero(values >= v) - np.count_nonzero(mine >= v) + 1 for v in mine]
    return np.array(ranks, dtype=np.int64)


def cross_rank_counts(ranks: NDArray[np.float64]) -> dict[str, int]:
    """Return the number of pairs in each interval of ranks."""
    stops = [*(edge - 1 for edge in RANK_EDGES[1:]), None]
    names = [f"{a}" if a == b else f"{a}-{b}" if b else f"> {a - 1}" for a, b in zip(RANK_EDGES, stops, strict=True)]
    counts = np.histogram(ranks, [*RANK_EDGES, np.inf])[0]
    return dict(zip(names, counts.tolist(), strict=True))


def draw_cross_ranks(ranks: Mapping[str, NDArray[np.float64]], file: Path) -> None:
    """Draw the shares of pairs by interval of ranks, for one matcher or several (aoq, supplement, Fig. 6)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axis = figure.subplots()
    width = 0.8 / len(ranks)
    for number, (name, found) in enumerate(ranks.items()):
        counts = cross_rank_counts(found)
        places = np.arange(len(counts)) - 0.4 + width * (number + 0.5)
        shares = [100 * count / max(1, len(found)) for count in counts.values()]
        bars = axis.bar(places, shares, width, label=name)
        axis.bar_label(bars, [f"{share:.1f}" for share in shares], fontsize=7)
        axis.set_xticks(range(len(counts)), list(counts))
    axis.set(xlabel="cross-retrieval rank of a matching pair", ylabel="share of pairs, %")
    axis.margins(y=0.1)  # space for the numbers above the bars
    if len(ranks) > 1:
        figure.legend(loc="outside upper left", frameon=False, fontsize=8)  # names may be long
    file.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(file, keep_suffix=True) as partial:
        figure.savefig(partial, dpi=110)
