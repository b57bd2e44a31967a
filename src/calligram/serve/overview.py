"""Overview of a library for the page: values to filter by, a sample of its items, and example queries."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from calligram.search.library.library import Library
from calligram.serve.schema import FacetValue

SAMPLE_ITEMS = 48
EXAMPLE_QUERIES = 4
EXAMPLE_QUERY_WORDS = (3, 9)
"""fewest and most words of a caption that serves as an example"""
MAX_FACET_VALUES = 100
"""values of a column that are listed; a column with more than ten times as many values gets no filter"""
CONTINUOUS_COLUMNS = frozenset(("width", "height", "bytes", "latitude", "longitude"))
"""columns for conditions such as ``width >= 1000``; a list of their values is of no use"""


@dataclass(frozen=True)
class Overview:
    """Computed once for each version of a library."""

    facets: Mapping[str, list[FacetValue]]
    sample: tuple[str, ...]
    examples: tuple[str, ...]


def library_overview(library: Library) -> Overview:
    """Read all items once. The sample has a fixed seed, so that the page looks the same after a reload."""
    draw, present = random.Random(0), 0
    counters: dict[str, Counter[Any]] = {name: Counter() for name in library.kinds if name not in CONTINUOUS_COLUMNS}
    sample: list[str] = []
    for row in library.rows():
        if row["state"] != "present":
            continue
        present += 1
        _count(counters, row)
        if len(sample) < SAMPLE_ITEMS:
            sample.append(row["id"])
        elif (slot := draw.randrange(present)) < SAMPLE_ITEMS:  # reservoir sampling
            sample[slot] = row["id"]
    draw.shuffle(sample)
    facets = {name: _values(counter) for name, counter in counters.items() if _is_useful(counter, present)}
    return Overview(facets, tuple(sample), _examples(library, sample))


def _count(counters: dict[str, Counter[Any]], row: Mapping[str, Any]) -> None:
    for name, counter in list(counters.items()):
        value = row.get(name)
        if value is not None and value != "":
            counter[value] += 1
            if len(counter) > 10 * MAX_FACET_VALUES:
                del counters[name]


def _is_useful(counter: Counter[Any], items: int) -> bool:
    """Whether a filter by value narrows the results: several values, and at most half as many as items."""
    return 1 < len(counter) <= max(2, items // 2)


def _values(counter: Counter[Any]) -> list[FacetValue]:
    """The most frequent values; numbers in ascending order if all of them are listed."""
    values: Iterable[tuple[Any, int]] = counter.most_common(MAX_FACET_VALUES)
    if len(counter) <= MAX_FACET_VALUES and not any(isinstance(value, str) for value in counter):
        values = sorted(values)
    return [FacetValue(value=value, count=count) for value, count in values]


def _examples(library: Library, sample: list[str]) -> tuple[str, ...]:
    found: list[str] = []
    fewest, most = EXAMPLE_QUERY_WORDS
    for item in library.items(sample):
        short = [text for text in item.captions if fewest <= len(text.split()) <= most]
        if short:
            found.append(short[0].strip().rstrip("."))
    return tuple(dict.fromkeys(found))[:EXAMPLE_QUERIES]
