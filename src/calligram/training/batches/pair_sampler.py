"""Samplers of matching pairs: which pairs share a batch."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.errors import UserError
from calligram.files import text_hash

Ints = NDArray[np.int64]


def derived_seed(*parts: int | str) -> int:
    """Derive a seed from its parts: reproducible on all machines, and unrelated for different parts.

    All randomness of a run is drawn from (seed, stage, epoch, step), so that a resumed run needs no saved random state.
    """
    return int(text_hash("/".join(map(str, parts)), 8), 16) >> 1


class PairSampler:
    """Batches of distinct images, each with ``texts`` of its texts.

    An epoch goes over the images in rounds. Each round has an image at most once, with texts that it has not had
    before, until every matching pair has come once. Images with more texts than others remain for late, small rounds.
    These are joined, so a batch there may contain an image twice. ``Batches`` encodes each distinct image and text
    once.
    """

    def __init__(self, matches: Matches, batch: int, seed: int, *, texts: int = 1, per_image: bool = False) -> None:
        """Args:
        batch: number of images in a batch, over all processes.
        texts: number of texts that come with an image.
        per_image: an epoch is one round over the images instead of all pairs.
        """
        if batch < 2:
            raise UserError(f"batch must be at least 2 images, got {batch}")
        if texts < 1:
            raise UserError(f"texts per image must be at least 1, got {texts}")
        self.matches, self.batch, self.seed, self.texts, self.per_image = matches, batch, seed, texts, per_image
        counts = matches.counts()[0]
        self._turns = int((counts > 0).sum() if per_image else (-(-counts // texts)).sum())
        if len(matches) < 2:
            raise UserError(f"training needs at least 2 matching pairs, this split has {len(matches)}")
        images, distinct = (int((count > 0).sum()) for count in matches.counts())
        if min(images, distinct) < 2:
            raise UserError(
                f"training needs at least 2 images and 2 different texts; this split has {images} and {distinct}"
            )

    def __len__(self) -> int:
        """Batches in an epoch. A last batch of less than half the size is left out; the next epoch has another
        order.
        """
        full, rest = divmod(self._turns, self.batch)
        return max(1, full + (rest >= self.batch / 2))

    def epoch(self, number: int) -> list[Ints]:
        """Batches of one epoch, each (N, 2) rows of images and texts."""
        rng = np.random.default_rng(derived_seed(self.seed, "batches", number))
        visual, text = self.matches.pairs()
        shuffled = rng.permutation(len(visual))
        visual, text = visual[shuffled], text[shuffled]
        round_of = _rank_within_label(visual, self.matches.shape[0]) // self.texts
        if self.per_image:
            first = round_of == 0
            visual, text, round_of = visual[first], text[first], round_of[first]
        # One random key for each (round, image), shared by the texts that come together.
        images = self.matches.shape[0]
        turn, inverse = np.unique(round_of * images + visual, return_inverse=True)
        order = np.lexsort((rng.random(len(turn)), turn // images))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        batch_of = place[inverse] // self.batch
        pairs = np.stack([visual, text], axis=1)
        return [pairs[batch_of == i] for i in range(len(self))]


def _rank_within_label(labels: Ints, count: int) -> Ints:
    """For each entry, the number of earlier entries with the same label."""
    by_label = np.argsort(labels, kind="stable")
    counts = np.bincount(labels, minlength=count)
    place = np.empty(len(labels), dtype=np.int64)
    place[by_label] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place


ExtraPairs = Literal["none", "neighbours", "random"]


class NeighbourhoodSampler(PairSampler):
    """Batches of ``PairSampler`` with extra pairs, so that an anchor has several positives (two-branch, Sec. 3.2.3).

    ``neighbours`` adds a second text for every image with one text in the batch, and a second image for every text with
    one image, where there are any. ``random`` is the control (Sec. 4.4): the same number of extra pairs of other
    images. An epoch has the same number of batches in all cases.
    """

    def __init__(
        self, matches: Matches, batch: int, seed: int, *, extra: ExtraPairs, texts: int = 1, per_image: bool = False
    ) -> None:
        super().__init__(matches, batch, seed, texts=texts, per_image=per_image)
        self.extra = extra
        self._transposed = matches.T
        self._all = np.stack(matches.pairs(), axis=1)

    def epoch(self, number: int) -> list[Ints]:
        """Batches of one epoch, each (N, 2) rows of images and texts."""
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
    """Draw a second partner for every item of the first column that is in one pair of the batch and has several
    partners.

    Args:
        pairs: (N, 2) matching items, as rows and columns of ``matches``.
    """
    items, first, count = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    rows, columns = matches.pairs()
    starts = np.searchsorted(rows, np.arange(matches.shape[0] + 1))
    partners = starts[items + 1] - starts[items]
    wanted = (count == 1) & (partners > 1)
    items, first, partners = items[wanted], first[wanted], partners[wanted]
    # Pairs are sorted by item and partner, so bisection finds the rank of a partner.
    width = matches.shape[1]
    place = np.searchsorted(rows * width + columns, items * width + pairs[first, 1]) - starts[items]
    other = (place + rng.integers(1, partners)) % partners
    return np.stack([items, columns[starts[items] + other]], axis=1)
