"""Which pairs share a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

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


def rounds(matches: Matches, rng: np.random.Generator) -> Iterator[Ints]:
    """All matching pairs once, as rounds (N, 2) in which every image occurs at most once."""
    visual, text = matches.pairs()
    order = rng.permutation(len(visual))
    visual, text = visual[order], text[order]
    by_image = np.argsort(visual, kind="stable")
    counts = np.bincount(visual, minlength=matches.shape[0])
    turn = np.empty(len(visual), dtype=np.int64)
    turn[by_image] = np.arange(len(visual)) - np.repeat(np.cumsum(counts) - counts, counts)
    for number in range(int(turn.max(initial=-1)) + 1):
        chosen = np.flatnonzero(turn == number)
        yield np.stack([visual[chosen], text[chosen]], axis=1)


class PairSampler:
    """Batches of pairs with distinct images: an epoch takes every matching pair once, in rounds over the images.

    Images that have more captions than others would end an epoch in small rounds; those are joined, so a batch there
    may hold an image twice. Batches name rows of pairs; ``Batches`` lays out each distinct image and text once.
    """

    def __init__(self, matches: Matches, batch: int, seed: int, *, per_image: bool = False) -> None:
        """Args:
        batch: pairs in a batch, over all processes.
        per_image: an epoch takes one pair of every image, a different one each epoch, instead of all pairs.
        """
        if batch < 2:
            raise UserError(f"batch must be at least 2 pairs, got {batch}")
        self.matches, self.batch, self.seed, self.per_image = matches, batch, seed, per_image
        self._pairs = int((matches.counts()[0] > 0).sum()) if per_image else len(matches)
        if self._pairs < 2:
            raise UserError(f"training needs at least 2 matching pairs, this split has {self._pairs}")

    def __len__(self) -> int:
        """Batches in an epoch. A last batch under half the size is left out; the next epoch shuffles anew."""
        full, rest = divmod(self._pairs, self.batch)
        return max(1, full + (rest >= self.batch / 2))

    def epoch(self, number: int) -> list[Ints]:
        """The batches of one epoch, each (N, 2) rows of images and texts."""
        rng = np.random.default_rng(derived_seed(self.seed, "batches", number))
        drawn = rounds(self.matches, rng)
        pairs = next(drawn) if self.per_image else np.concatenate(list(drawn))
        return [pairs[i * self.batch : (i + 1) * self.batch] for i in range(len(self))]
