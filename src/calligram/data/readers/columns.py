"""Further columns of a captions table as metadata: of the image where it has one value, else of the caption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from calligram.data.draft import CaptionRecord, ImageRecord, Value


@dataclass
class Described:
    """A row of a table once its image is known."""

    image: ImageRecord
    captions: list[CaptionRecord] = field(default_factory=list)
    further: dict[str, Value] = field(default_factory=dict)


def add_metadata(rows: Sequence[Described]) -> None:
    """Give every further column to the images, or to the captions if an image has two values of it.

    Columns of a ``.csv`` hold text; those with nothing but numbers become numbers.
    """
    for name in dict.fromkeys(name for row in rows for name in row.further):
        values = typed([row.further.get(name) for row in rows])
        by_image: dict[str, set[Value]] = {}
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                by_image.setdefault(row.image.id, set()).add(value)
        of_captions = any(len(distinct) > 1 for distinct in by_image.values())
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                for record in row.captions if of_captions else [row.image]:
                    record.metadata[name] = value


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
