"""Batches of annotated pairs, each with a batch of pseudo pairs of other images, or with texts that match no image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import numpy as np

from calligram.training.batches.batch import Batch, BatchSource, Ints, PairSampler, derived_seed


@dataclass(frozen=True)
class PseudoPairBatch(Batch):
    """A batch of annotated pairs with a batch of pseudo pairs; the two are encoded and scored separately."""

    pseudo: Batch | None = None


class FurtherTextSampler(PairSampler):
    """Batches of another sampler, each with as many texts that match no image as it has pairs.

    A batch is (N, 4): its pairs, -1 for no drawn image, and a text. The texts are drawn without repetition within an
    epoch as far as they suffice.
    """

    def __init__(self, pairs: PairSampler, seed: int) -> None:
        super().__init__(pairs.matches, pairs.batch, seed, texts=pairs.texts, per_image=pairs.per_image)
        self._pairs = pairs
        self._unmatched = np.flatnonzero(pairs.matches.counts()[1] == 0)

    def epoch(self, number: int) -> list[Ints]:
        """Batches of one epoch, each (N, 4)."""
        batches = self._pairs.epoch(number)
        rng = np.random.default_rng(derived_seed(self.seed, "further texts", number))
        sizes = [len(pairs) for pairs in batches]
        drawn = np.resize(rng.permutation(self._unmatched), sum(sizes))
        parts = np.split(drawn, np.cumsum(sizes)[:-1])
        return [
            np.column_stack([pairs, np.full(len(pairs), -1), texts])
            for pairs, texts in zip(batches, parts, strict=True)
        ]


class RepeatedPasses:
    """Epochs with a given number of batches: repeated passes over a source, the last one truncated.

    The passes of an epoch have derived numbers, so that each has another order, and an epoch can start at any step.
    """

    def __init__(self, source: BatchSource, steps: int) -> None:
        self.source, self.steps = source, steps

    def __len__(self) -> int:
        return self.steps

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch from step ``start`` on."""
        number_of_pass, within = divmod(start, len(self.source))
        step = start
        while step < self.steps:
            pass_seed = number if number_of_pass == 0 else derived_seed(number, "again", number_of_pass)
            # Closed early, so that the background thread of a truncated pass stops.
            with closing(self.source.epoch(pass_seed, within)) as batches:  # type: ignore[type-var]
                for batch in islice(batches, self.steps - step):
                    yield batch
                    step += 1
            number_of_pass, within = number_of_pass + 1, 0


class PseudoPairBatches:
    """Annotated pairs and pseudo pairs in parallel, each with its own passes (a3vse, Sec. 3.4).

    An epoch is a pass over the annotated pairs, or ``steps`` batches. If that is shorter than a pass over the pseudo
    pairs, each epoch uses another part of them.
    """

    def __init__(self, annotated: BatchSource, pseudo: BatchSource, steps: int = 0) -> None:
        """Args:
        steps: number of batches in an epoch; 0 for one pass over the annotated pairs.
        """
        self.steps = steps or len(annotated)
        self.annotated, self.pseudo = RepeatedPasses(annotated, self.steps), RepeatedPasses(pseudo, self.steps)

    def __len__(self) -> int:
        return self.steps

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch from step ``start`` on."""
        others = self.pseudo.epoch(derived_seed(number, "pseudo"), start)
        with closing(self.annotated.epoch(number, start)) as annotated, closing(others) as pseudo:  # type: ignore[type-var]
            for batch, pseudo_batch in zip(annotated, pseudo, strict=True):
                yield PseudoPairBatch(**vars(batch), pseudo=pseudo_batch)
