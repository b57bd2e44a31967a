"""What a library looks like from afar: values to filter by, some of its pictures, and things one might ask it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from calligram.search.library import Library
from calligram.serve.schema import FacetValue

SAMPLE = 48
MOST_VALUES = 100
"""values of a column that are worth a list to choose from; beyond ten times as many it is not counted at all"""
MEASURED = frozenset(("width", "height", "bytes", "latitude", "longitude"))
"""columns that nobody chooses single values of, and that a condition such as ``width >= 1000`` is for"""
EXAMPLES = 4
WORDS = (3, 9)
"""length of a caption that reads like a query"""


@dataclass(frozen=True)
class Overview:
    """Counted once for each state of a library."""

    facets: Mapping[str, list[FacetValue]]
    sample: tuple[str, ...]
    examples: tuple[str, ...]


def overview(library: Library) -> Overview:
    """Pass over all items once. The sample is drawn the same way each time, so that the page does not flicker."""
    draw, present = random.Random(0), 0
    counters: dict[str, Counter[Any]] = {name: Counter() for name in library.kinds if name not in MEASURED}
    sample: list[str] = []
    for row in library.rows():
        if row["state"] != "present":
            continue
        present += 1
        _count(counters, row)
        if len(sample) < SAMPLE:
            sample.append(row["id"])
        elif (slot := draw.randrange(present)) < SAMPLE:
            sample[slot] = row["id"]
    draw.shuffle(sample)
    facets = {name: _values(counter) for name, counter in counters.items() if _chooses(counter, present)}
    return Overview(facets, tuple(sample), _examples(library, sample))


def _count(counters: dict[str, Counter[Any]], row: Mapping[str, Any]) -> None:
    for name, counter in list(counters.items()):
        value = row.get(name)
        if value is not None and value != "":
            counter[value] += 1
            if len(counter) > 10 * MOST_VALUES:
                del counters[name]


def _chooses(counter: Counter[Any], items: int) -> bool:
    """Whether choosing a value narrows anything: several values, and fewer of them than items."""
    return 1 < len(counter) <= max(2, items // 2)


def _values(counter: Counter[Any]) -> list[FacetValue]:
    """The commonest; numbers and years in their own order when all of them are shown."""
    values: Iterable[tuple[Any, int]] = counter.most_common(MOST_VALUES)
    if len(counter) <= MOST_VALUES and not any(isinstance(value, str) for value in counter):
        values = sorted(values)
    return [FacetValue(value=value, count=count) for value, count in values]


def _examples(library: Library, sample: list[str]) -> tuple[str, ...]:
    found: list[str] = []
    for item in library.items(sample):
        short = [text for text in item.captions if WORDS[0] <= len(text.split()) <= WORDS[1]]
        if short:
            found.append(short[0].strip().rstrip("."))
    return tuple(dict.fromkeys(found))[:EXAMPLES]
