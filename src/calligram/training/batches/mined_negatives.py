"""Batches with offline hard negatives, drawn for each pair from lists that are mined over a whole split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from calligram.data.matches import Matches
from calligram.data.negatives import NegativeLists, RankedRows
from calligram.training.batches.batch import PairSampler, derived_seed

Ints = NDArray[np.int64]
RankDistribution = Literal["uniform", "normal"]
_Draw = Callable[[Ints], Ints]

MAX_DRAWS = 20
"""number of draws after which two negatives that still match each other are not used together"""
NORMAL_DEVIATIONS = 3.0
"""standard deviations of the normal distribution of ranks between the middle and the end of a list"""


class OfflineSampler(PairSampler):
    """Batches of ``PairSampler`` in which each pair (i, t) has offline negatives (aoq, Sec. 3.2).

    A batch is (N, 6): i, t, i_off, t_off, then an image of t_off and a text of i_off. i_off and t_off are drawn from
    the lists of t and i. They are drawn again while they match each other, and so are the two items derived from them.
    -1 stands for a missing item: the pair has no negatives, or all of them match each other. The release draws both
    from the same rank, and does not draw again. Without ``derived`` a batch is (N, 4), and there is less to encode.
    """

    def __init__(
        self,
        matches: Matches,
        batch: int,
        seed: int,
        negatives: NegativeLists | None = None,
        *,
        distribution: RankDistribution = "uniform",
        excluded: Matches | None = None,
        derived: bool = True,
        texts: int = 1,
        per_image: bool = False,
    ) -> None:
        """Args:
        negatives: lists in the order of the items of ``matches``; None if ``set_negatives`` gives them later.
        distribution: distribution of the drawn ranks: uniform, or normal around the middle of a list. Normal leaves out
            most of the top of the list, where false negatives may be (aoq, supplement; its parameters are not given).
        excluded: pairs that are not negatives; ``matches`` when None.
        """
        super().__init__(matches, batch, seed, texts=texts, per_image=per_image)
        self.distribution, self.derived = distribution, derived
        if negatives is not None:
            self.set_negatives(negatives)
        self._excluded = matches if excluded is None else excluded
        self._texts_of, self._images_of = PartnerSampler(matches), PartnerSampler(matches.T)

    def set_negatives(self, negatives: NegativeLists) -> None:
        """Draw from these lists from now on."""
        self._texts, self._images = _RankedLists(negatives.texts), _RankedLists(negatives.images)

    def epoch(self, number: int) -> list[Ints]:
        """Batches of one epoch, each (N, 6) or (N, 4)."""
        batches = super().epoch(number)
        rng = np.random.default_rng(derived_seed(self.seed, "offline", number))
        drawn = self.draw(np.concatenate(batches), rng)
        return np.split(drawn, np.cumsum([len(pairs) for pairs in batches])[:-1])

    def draw(self, pairs: Ints, rng: np.random.Generator) -> Ints:
        """Draw negatives for pairs (N, 2): (N, 6) or (N, 4)."""
        image, text = self._draw_non_matching(
            lambda of: self._images.draw(pairs[of, 1], self.distribution, rng),
            lambda of: self._texts.draw(pairs[of, 0], self.distribution, rng),
            len(pairs),
        )
        # The negative text still counts if every drawn image matches it.
        image = np.where(self._matching(image, text), -1, image)
        if not self.derived:
            return np.stack([pairs[:, 0], pairs[:, 1], image, text], axis=1)
        image_of, text_of = self._draw_non_matching(
            lambda of: self._images_of.draw(text[of], rng), lambda of: self._texts_of.draw(image[of], rng), len(pairs)
        )
        matching = self._matching(image_of, text_of)
        image_of, text_of = np.where(matching, -1, image_of), np.where(matching, -1, text_of)
        return np.stack([pairs[:, 0], pairs[:, 1], image, text, image_of, text_of], axis=1)

    def _draw_non_matching(self, images: _Draw, texts: _Draw, count: int) -> tuple[Ints, Ints]:
        """Draw images and texts; pairs that match each other are drawn again."""
        image, text = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        again = np.arange(count)
        for _ in range(MAX_DRAWS):
            image[again], text[again] = images(again), texts(again)
            again = again[self._matching(image[again], text[again])]
            if not len(again):
                break
        return image, text

    def _matching(self, image: Ints, text: Ints) -> NDArray[np.bool_]:
        there = (image >= 0) & (text >= 0)
        matching = np.zeros(len(image), dtype=bool)
        matching[there] = self._excluded.among(image[there], text[there])
        return matching


class _RankedLists:
    """Draws from ranked lists."""

    def __init__(self, lists: RankedRows) -> None:
        self._lists, self._lengths = lists, (np.asarray(lists) >= 0).sum(1)

    def draw(self, anchors: Ints, distribution: RankDistribution, rng: np.random.Generator) -> Ints:
        """Draw one candidate of each anchor's list; -1 if it is empty."""
        position = rng.random(len(anchors))
        if distribution == "normal":
            # Inverse of a normal distribution that is truncated at both ends of the list.
            outside = ndtr(-NORMAL_DEVIATIONS)
            position = 0.5 + ndtri(outside + position * (1 - 2 * outside)) / (2 * NORMAL_DEVIATIONS)
        length = self._lengths[anchors]
        rank = np.minimum((position * length).astype(np.int64), np.maximum(length - 1, 0))
        if not self._lists.shape[1]:
            return np.full(len(anchors), -1, dtype=np.int64)
        return np.where(length > 0, self._lists[anchors, rank], -1).astype(np.int64)


class PartnerSampler:
    """Draws a random matching partner of an item."""

    def __init__(self, matches: Matches) -> None:
        rows, self._columns = matches.pairs()
        self._starts = np.searchsorted(rows, np.arange(matches.shape[0] + 1))

    def draw(self, items: Ints, rng: np.random.Generator) -> Ints:
        """Draw a matching column for each row in ``items``; -1 for -1, and for rows without matches."""
        chance = rng.random(len(items))
        known = np.maximum(items, 0)
        count = np.where(items >= 0, self._starts[known + 1] - self._starts[known], 0)
        position = self._starts[known] + (chance * count).astype(np.int64)
        return np.where(count > 0, self._columns[np.minimum(position, len(self._columns) - 1)], -1)
