"""How many candidates a second stage can compare in a given time, by what it took in this process."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from calligram.errors import UserError
from calligram.search.index import Index

TRIED = (8, 64)
"""candidates that are compared for a first measurement"""
TURNS = 3
"""of which the fastest counts: it shows what the work takes, others what else went on"""
FRESH = 0.2
"""weight of an answer beside all before it"""
FACTOR = 2.0
"""an answer counts as so many times slower or faster than expected at most: a machine that pauses is no measure"""

SHARE = 0.25
"""of a comparison's time is its candidates' at least. Where few take as long as many, as on an accelerator or after a
pause, they would else cost nothing, and all of a library would fit into any time"""


class Budget(NamedTuple):
    """Time that an answer may take, in place of a number of candidates."""

    seconds: float

    @classmethod
    def of_milliseconds(cls, milliseconds: float) -> Budget:
        """Of what users write.

        Raises:
            UserError: for no time at all, or a time without end.
        """
        if not (math.isfinite(milliseconds) and milliseconds > 0):
            raise UserError(f"a budget is a number of milliseconds above 0, got {milliseconds:g}")
        return cls(milliseconds / 1000)


class Pace:
    """What the parts of an answer take, in seconds; learns from every answer, and threads may share it."""

    def __init__(self, around: float, start: float, each: float) -> None:
        """Args:
        around: what comes between encoding the query and comparing candidates, and after it.
        start: of comparing, however few candidates there are.
        each: a candidate.
        """
        self.around, self.start, self.each = around, start, max(each, 1e-9)
        self._learning = threading.Lock()

    def depth(self, left: float) -> int:
        """Candidates that can be compared when so many seconds are left after encoding; 0 when there is no time."""
        return max(0, int((left - self.around - self.start) / self.each))

    def learn(self, around: float, candidates: int, seconds: float) -> None:
        """From an answer: what was around comparing, and how many candidates were compared in what time."""
        with self._learning:
            self.around = _moved(self.around, around)
            if candidates:
                self.each = _moved(self.each, max(1e-9, seconds - self.start, SHARE * seconds) / candidates)
                if seconds < self.start:
                    self.start = _moved(self.start, seconds)

    @classmethod
    def measured(cls, index: Index, compare: Callable[[Sequence[str]], object]) -> Pace:
        """Look candidates up and compare them, a few and some more.

        Args:
            index: of one item at least.
            compare: is handed ids of it.
        """
        direction = np.full((1, index.dim), index.dim**-0.5, dtype=np.float32)
        most = min(len(index), TRIED[1])
        ids = [found.id for found in index.search(direction, most)[0]]  # also reads what is read but once
        around = _fastest(lambda: index.search(direction, most))
        few = min(TRIED[0], len(ids))
        compare(ids)
        short, long = _fastest(lambda: compare(ids[:few])), _fastest(lambda: compare(ids))
        each = (long - short) / (len(ids) - few) if len(ids) > few else short / few
        each = max(each, SHARE * long / len(ids))
        return cls(around, max(0.0, short - few * each), each)


def _fastest(work: Callable[[], object]) -> float:
    spent = []
    for _ in range(TURNS):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return min(spent)


def _moved(before: float, now: float) -> float:
    """A running mean that no single value moves far."""
    held = min(max(now, before / FACTOR), max(before, 1e-9) * FACTOR)
    return (1 - FRESH) * before + FRESH * held
