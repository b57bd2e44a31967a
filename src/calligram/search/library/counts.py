"""Number of pictures by day, month, year, folder or place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from calligram.search.filters.columns import ColumnValue
from calligram.search.library.library import Library

Grouping = Literal["day", "month", "year", "folder", "place"]
DATE_CHARACTERS: Mapping[Grouping, int] = {"day": 10, "month": 7, "year": 4}
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
PLACE_DECIMALS = 1
"""of degrees: places of about 11 kilometres from north to south"""


def counts_by(library: Library, grouping: Grouping) -> Counter[str | None]:
    """Number of present items for each day, month, year, folder or place; None for those without one."""
    return Counter(group_of(row, grouping) for row in library.rows() if row["state"] == "present")


def group_of(row: Mapping[str, ColumnValue], grouping: Grouping) -> str | None:
    """The day, month, year, folder or place of an item, for counts; None where it is not known.

    >>> group_of({"taken": "2019-07-02T12:30:00"}, "month"), group_of({"latitude": 48.857, "longitude": 2.35}, "place")
    ('2019-07', '48.9, 2.4')
    """
    if grouping == "folder":
        return str(row.get("folder") or "")
    if grouping == "place":
        place = row.get("latitude"), row.get("longitude")
        if not all(isinstance(value, int | float) for value in place):
            return None
        return ", ".join(f"{round(float(value or 0), PLACE_DECIMALS) + 0.0:.{PLACE_DECIMALS}f}" for value in place)
    taken, year = row.get("taken"), row.get("year")
    if isinstance(taken, str) and ISO_DATE.match(taken):
        return taken[: DATE_CHARACTERS[grouping]]
    return str(int(year)) if grouping == "year" and isinstance(year, int | float) else None
