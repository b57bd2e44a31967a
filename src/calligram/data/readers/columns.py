"""Further columns of a captions table as metadata: of the images, or of the captions where that is what they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from calligram.data.draft import CaptionRecord, ImageRecord, Value
from calligram.data.problems import Problems

FEWEST = 2
"""images whose rows differ, for a column to be one of captions: a single one may well be a slip"""


@dataclass
class Described:
    """A row of a table once its image is known."""

    image: ImageRecord
    line: str
    """file and line, for reports"""
    captions: list[CaptionRecord] = field(default_factory=list)
    further: dict[str, Value] = field(default_factory=dict)


def add_metadata(rows: Sequence[Described], problems: Problems) -> None:
    """Give every further column to the images or, where it says something of each caption, to the captions.

    An image keeps the first of its values; rows that contradict it are reported, and so are values of rows without a
    caption where the column is one of captions. Columns of a ``.csv`` hold text; those with nothing but numbers
    become numbers.
    """
    for name in dict.fromkeys(name for row in rows for name in row.further):
        values = typed([row.further.get(name) for row in rows])
        given = [(row, value) for row, value in zip(rows, values, strict=True) if value is not None]
        if _of_captions(given):
            _to_captions(name, given, problems)
        else:
            _to_images(name, given, problems)


def _of_captions(given: Sequence[tuple[Described, Value]]) -> bool:
    """Whether a column, such as who wrote a caption, differs in half of the images that could show it, or more."""
    by_image: dict[str, list[Value]] = {}
    for row, value in given:
        by_image.setdefault(row.image.id, []).append(value)
    several = [values for values in by_image.values() if len(values) > 1]
    differ = sum(not all(_same(values[0], value) for value in values) for values in several)
    return differ >= FEWEST and 2 * differ >= len(several)


def _same(one: Value, other: Value) -> bool:
    return one == other or (one != one and other != other)  # "nan" in a column of numbers


def _to_images(name: str, given: Sequence[tuple[Described, Value]], problems: Problems) -> None:
    for row, value in given:
        kept = row.image.metadata.setdefault(name, value)
        if not _same(kept, value):
            problems.skip(f"contradictory {name}", row.line, f"{row.image.id} keeps {kept!r}, not {value!r}")


def _to_captions(name: str, given: Sequence[tuple[Described, Value]], problems: Problems) -> None:
    for row, value in given:
        for caption in row.captions:
            caption.metadata[name] = value
        if not row.captions:
            kind = f"{name} of a row that adds no caption: not stored, the column differs between captions"
            problems.skip(kind, row.line, f"of {row.image.id}: {value!r}")


def typed(values: Sequence[Value]) -> list[Value]:
    """Numbers where every value that is there reads as one; text with leading zeros is a name, not a number.

    >>> typed(["1", None, "12"]), typed(["1", "2.5"]), typed(["007", "1"])
    ([1, None, 12], [1.0, 2.5], ['007', '1'])
    """
    given = [v for v in values if v is not None]
    if not given or not all(isinstance(v, str) for v in given):
        return list(values)
    if any(len(str(v)) > 1 and str(v)[0] == "0" and str(v)[1].isdigit() for v in given):
        return list(values)
    number: Callable[[str], Value]
    for number in (int, float):
        try:
            return [None if v is None else number(str(v)) for v in values]
        except ValueError:
            continue
    return list(values)


def identity_numbers(names: Sequence[str]) -> dict[str, int]:
    """A number for each identity: its own where all are whole numbers of at least 0, else in order of appearance."""
    distinct = list(dict.fromkeys(names))
    if all(name.isascii() and name.isdigit() for name in distinct):
        return {name: int(name) for name in distinct}
    return {name: number for number, name in enumerate(distinct)}
