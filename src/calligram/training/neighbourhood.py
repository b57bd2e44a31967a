"""Neighbourhood sampling: batches in which a target has more than one positive."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.training.samplers import PairSampler, derived_seed

Ints = NDArray[np.int64]
Extra = Literal["none", "neighbours", "random"]


class NeighbourhoodSampler(PairSampler):
    """Batches of ``PairSampler`` with further pairs (two-branch, Sec. 3.2.3).

    ``neighbours`` gives every image that came with one text a second one of its own, and every text that came with one
    of its images a second image, where there are any. ``random`` is the control (Sec. 4.4): as many further pairs of
    other images. An epoch has the same number of batches in all cases.
    """

    def __init__(
        self, matches: Matches, batch: int, seed: int, *, extra: Extra, texts: int = 1, per_image: bool = False
    ) -> None:
        super().__init__(matches, batch, seed, texts=texts, per_image=per_image)
        self.extra = extra
        self._transposed = matches.T
        self._all = np.stack(matches.pairs(), axis=1)

    def epoch(self, number: int) -> list[Ints]:
        """The batches of one epoch, each (N, 2) rows of images and texts."""
        batches = super().epoch(number)
        if self.extra == "none":
            return batches
        rng = np.random.default_rng(derived_seed(self.seed, "neighbours", number))
        return [np.concatenate([pairs, self._more(pairs, rng)]) for pairs in batches]

    def _more(self, pairs: Ints, rng: np.random.Generator) -> Ints:
        second_texts = second_partners(pairs, self.matches, rng)
        second_images = second_partners(pairs[:, ::-1], self._transposed, rng)[:, ::-1]
        more = np.concatenate([second_texts, second_images])
        if self.extra == "neighbours":
            return more
        key = np.array([self.matches.shape[1], 1])
        others = self._all[~np.isin(self._all @ key, pairs @ key)]
        return others[rng.choice(len(others), min(len(more), len(others)), replace=False)]


def second_partners(pairs: Ints, matches: Matches, rng: np.random.Generator) -> Ints:
    """A second, random partner for every item of the first column that stands in one pair only and has several.

    Args:
        pairs: (N, 2) matching items, numbered as rows and columns of ``matches``.
    """
    items, first, count = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    rows, columns = matches.pairs()
    starts = np.searchsorted(rows, np.arange(matches.shape[0] + 1))
    partners = starts[items + 1] - starts[items]
    wanted = (count == 1) & (partners > 1)
    items, first, partners = items[wanted], first[wanted], partners[wanted]
    # Pairs are sorted by item and partner, so a partner's place among its item's is found by bisection.
    width = matches.shape[1]
    place = np.searchsorted(rows * width + columns, items * width + pairs[first, 1]) - starts[items]
    other = (place + rng.integers(1, partners)) % partners
    return np.stack([items, columns[starts[items] + other]], axis=1)
