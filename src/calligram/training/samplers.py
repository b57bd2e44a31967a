"""Which pairs share a batch."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.errors import UserError

Ints = NDArray[np.int64]


def derived_seed(*parts: int | str) -> int:
    """A seed from its parts: the same everywhere, and unrelated for different parts.

    All randomness of a run is drawn from (seed, stage, epoch, step), so that a resumed run needs no saved random state.
    """
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class PairSampler:
    """Batches of distinct images, each with ``texts`` of its texts.

    An epoch goes over the images in rounds, each image at most once in a round with texts it did not have before, until
    every matching pair has come once. Images with more texts than others are left over for late, small rounds; those
    are joined, so a batch there may name an image twice. ``Batches`` lays out each distinct image and text once.
    """

    def __init__(self, matches: Matches, batch: int, seed: int, *, texts: int = 1, per_image: bool = False) -> None:
        """Args:
        batch: images in a batch, over all processes.
        texts: how many texts of an image come with it.
        per_image: an epoch is a single round over the images instead of all pairs.
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
                f"training needs at least 2 images and 2 different texts to tell apart; this split has {images} and "
                f"{distinct}"
            )

    def __len__(self) -> int:
        """Batches in an epoch. A last batch under half the size is left out; the next epoch shuffles anew."""
        full, rest = divmod(self._turns, self.batch)
        return max(1, full + (rest >= self.batch / 2))

    def epoch(self, number: int) -> list[Ints]:
        """The batches of one epoch, each (N, 2) rows of images and texts."""
        rng = np.random.default_rng(derived_seed(self.seed, "batches", number))
        visual, text = self.matches.pairs()
        shuffled = rng.permutation(len(visual))
        visual, text = visual[shuffled], text[shuffled]
        round_of = _place_within(visual, self.matches.shape[0]) // self.texts
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


def _place_within(labels: Ints, count: int) -> Ints:
    """For each entry: how many entries of the same label stand before it."""
    by_label = np.argsort(labels, kind="stable")
    counts = np.bincount(labels, minlength=count)
    place = np.empty(len(labels), dtype=np.int64)
    place[by_label] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place
