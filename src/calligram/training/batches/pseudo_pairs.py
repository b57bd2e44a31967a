"""Batches of pairs that people made, each with a batch of pseudo pairs of other images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from calligram.training.batches.batch import Batch
from calligram.training.batches.pair_sampler import derived_seed


@dataclass(frozen=True)
class PseudoPairBatch(Batch):
    """A batch with one of pseudo pairs beside it; they are encoded and scored apart."""

    pseudo: Batch | None = None


class BatchSource(Protocol):
    """What ``Batches`` is to those who go over it."""

    def __len__(self) -> int: ...
    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of a pass from ``start`` on."""
        ...


class RepeatedPasses:
    """An epoch of a given number of batches: passes over a source, one after the other, the last one cut short.

    Passes of an epoch have numbers derived from its own, so that each shuffles anew, and any step can be entered.
    """

    def __init__(self, source: BatchSource, steps: int) -> None:
        self.source, self.steps = source, steps

    def __len__(self) -> int:
        return self.steps

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch from ``start`` on."""
        turn, within = divmod(start, len(self.source))
        place = start
        while place < self.steps:
            named = number if turn == 0 else derived_seed(number, "again", turn)
            # Closed before its end, so that nothing goes on being prepared for a pass that was cut short.
            with closing(self.source.epoch(named, within)) as batches:  # type: ignore[type-var]
                for batch in islice(batches, self.steps - place):
                    yield batch
                    place += 1
            turn, within = turn + 1, 0


class PseudoPairBatches:
    """Annotated and pseudo pairs side by side, each going round at its own pace (a3vse, Sec. 3.4).

    An epoch is a pass over the annotated pairs, or ``steps`` of them. One that is shorter than a pass over the pseudo
    pairs takes a part of them, another part each time.
    """

    def __init__(self, annotated: BatchSource, pseudo: BatchSource, steps: int = 0) -> None:
        """Args:
        steps: in an epoch; 0 for as many as the annotated pairs give.
        """
        self.steps = steps or len(annotated)
        self.annotated, self.pseudo = RepeatedPasses(annotated, self.steps), RepeatedPasses(pseudo, self.steps)

    def __len__(self) -> int:
        return self.steps

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch from ``start`` on."""
        others = self.pseudo.epoch(derived_seed(number, "pseudo"), start)
        with closing(self.annotated.epoch(number, start)) as own, closing(others) as pseudo:  # type: ignore[type-var]
            for batch, beside in zip(own, pseudo, strict=True):
                yield PseudoPairBatch(**vars(batch), pseudo=beside)
