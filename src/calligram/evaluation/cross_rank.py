"""Cross-retrieval rank: how well a matching pair does in the worse of the two directions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.errors import NotFiniteError

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]

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
