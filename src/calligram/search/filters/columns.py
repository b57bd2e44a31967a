"""Metadata columns of items: their names, kinds and values, and the form in which an index stores them.

pyarrow is imported on use, so that a wrong condition is refused before anything slow is imported.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from calligram.errors import UserError
from calligram.text import NORMAL_FORM, is_encodable

if TYPE_CHECKING:
    import pyarrow as pa

    from calligram.search.library.library import Library

ColumnKind = Literal["number", "text", "flag"]
"""what a column holds; dates are text in ISO order"""
ColumnValue = str | int | float | bool | None

FILE_COLUMNS: Mapping[str, ColumnKind] = {
    **{"path": "text", "folder": "text", "name": "text", "source": "text", "bytes": "number"},
    **{"width": "number", "height": "number"},
}
"""columns that a library fills for each picture; no source may replace them"""
EXIF_COLUMNS: Mapping[str, ColumnKind] = {
    "taken": "text",
    "year": "number",
    "camera": "text",
    "latitude": "number",
    "longitude": "number",
}
"""columns from the EXIF data of a picture; a column of the source with the same name replaces them"""
TEXT_COLUMN = "text_in_picture"
"""text that was read from the pixels; empty in the table of items where a picture has none"""
PLACE_COLUMN = "town"
"""name of the nearest town; empty in the table of items where there is none"""
COMPUTED_COLUMNS = (TEXT_COLUMN, PLACE_COLUMN)
"""columns that are computed on request"""
PICTURE_COLUMNS = (*EXIF_COLUMNS, *COMPUTED_COLUMNS)
"""columns that come from the content of a picture, so that a copy of it has them too"""
DATE_COLUMNS = frozenset({"taken"})
"""columns of text that hold dates in ISO order"""
LIBRARY_COLUMNS: Mapping[str, ColumnKind] = {**FILE_COLUMNS, **EXIF_COLUMNS}
"""columns that every library has"""
ARROW_TYPES: Mapping[ColumnKind, str] = {"number": "float64", "text": "string", "flag": "bool"}
RESERVED_NAMES = frozenset(FILE_COLUMNS) | {"id", "vector", "score", "rank", "captions"}


def wanted_columns(asked: Mapping[str, bool | None], known: Container[str]) -> list[str]:
    """The columns of ``COMPUTED_COLUMNS`` that are asked for, or that a library has and that nobody refuses."""
    return [name for name in COMPUTED_COLUMNS if (name in known if asked.get(name) is None else asked[name])]


def kind_of(value: ColumnValue) -> ColumnKind:
    """The kind of a value."""
    if isinstance(value, bool):
        return "flag"
    return "number" if isinstance(value, int | float) else "text"


def scalar(value: Any) -> ColumnValue:
    """A value of a collection's column as a number, a text or a flag; lists and other values become JSON."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except (TypeError, ValueError):
        return str(value)


def library_names(columns: Iterable[str]) -> dict[str, str]:
    """The names of a source's columns in the library: word characters only, and no reserved name.

    A collection's ``year`` or ``camera`` replaces the one from EXIF; its ``path`` becomes ``path_``.
    """
    names: dict[str, str] = {}
    for column in columns:
        name = re.sub(r"\W+", "_", column).strip("_") or "column"
        name = f"c_{name}" if name[0].isdigit() else name
        while name in RESERVED_NAMES or name in names.values():
            name += "_"
        names[column] = name
    return names


def fit_kinds(values: Mapping[str, ColumnValue], kinds: dict[str, ColumnKind]) -> dict[str, ColumnValue]:
    """Values that fit the kinds of their columns; new columns are added to ``kinds``.

    A text in a column of numbers goes to the column ``NAME_text``. Any value in a column of text becomes text.
    """
    out: dict[str, ColumnValue] = {}
    for name, value in values.items():
        if value is None:
            continue
        kind = kinds.setdefault(name, kind_of(value))
        if kind == kind_of(value):
            out[name] = value
        elif kind == "text":
            out[name] = str(value)
        else:
            kinds.setdefault(f"{name}_text", "text")
            out[f"{name}_text"] = str(value)
    return out


def row_of(item: Mapping[str, Any], root: str) -> dict[str, ColumnValue]:
    """All columns of an item, from its row in the items table."""
    own = {name: item[name] for name in ("folder", "name", "bytes", "width", "height")}
    found: dict[str, ColumnValue] = {"path": item["key"], "source": root, **own, **json.loads(item["metadata"])}
    return {
        name: value
        for name, value in found.items()
        if value is not None and (value != "" or name not in COMPUTED_COLUMNS)
    }


def table_of(rows: Sequence[Mapping[str, ColumnValue]], kinds: Mapping[str, ColumnKind]) -> pa.Table:
    """Rows as an Arrow table with a column for each of ``kinds``."""
    import pyarrow as pa

    columns = {}
    for name, kind in kinds.items():
        values = [row.get(name) for row in rows]
        if kind == "number":
            values = [None if value is None else float(value) for value in values]
        columns[name] = pa.array(values, type=ARROW_TYPES[kind])
    return pa.table(columns)


# The form in which an index stores columns.


def stored_name(column: str) -> str:
    """The name of a column within an engine: lower-case letters, digits and ``_``, whatever the column's own name is.

    Engines differ in how they quote names and in how they treat dots and capitals. These names need no quotes, and
    none of them is ``id`` or ``vector``.

    >>> stored_name("year"), stored_name("Shot at")
    ('c_year', 'c__53hot_20at')
    """
    plain = (c if c.isascii() and (c.islower() or c.isdigit()) else f"_{ord(c):x}" for c in column)
    return "c_" + "".join(plain)


def arrow_kind(column: str, type: pa.DataType) -> ColumnKind | None:
    """The kind of a column of an Arrow type; None for a column of nulls.

    Raises:
        UserError: for other types.
    """
    from pyarrow import types

    if types.is_dictionary(type):
        type = type.value_type
    if types.is_boolean(type):
        return "flag"
    if types.is_integer(type) or types.is_floating(type):
        return "number"
    if types.is_string(type) or types.is_large_string(type) or types.is_string_view(type):
        return "text"
    if types.is_null(type):
        return None
    raise UserError(f"column {column!r} has type {type}; columns to filter by hold numbers, text or true and false")


def kinds_of(columns: pa.Table) -> dict[str, ColumnKind]:
    """The kinds of a table's columns, without columns of nulls."""
    kinds = {field.name: arrow_kind(field.name, field.type) for field in columns.schema}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def stored_columns(columns: pa.Table, rows: int) -> pa.Table:
    """Columns under their stored names: numbers as float64, null where they are not finite, and text in NFC.

    Integers above 2**53 lose their last digits.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if columns.num_columns and len(columns) != rows:
        raise UserError(f"{rows} ids with {len(columns)} rows of columns; there must be one row for each id")
    found = {}
    for name, kind in kinds_of(columns).items():
        column = columns[name].cast(ARROW_TYPES[kind])
        if kind == "text":
            column = pc.utf8_normalize(column, form=NORMAL_FORM)
        if kind == "number":
            column = pc.add(pc.if_else(pc.is_finite(column), column, None), 0.0)
        found[stored_name(name)] = column
    return pa.table(found)


def checked_ids(ids: Sequence[str]) -> list[str]:
    """The ids, after checking that none is empty, given twice, or impossible to encode in UTF-8."""
    if len(set(ids)) != len(ids):
        twice = next(id for id in ids if list(ids).count(id) > 1)
        raise UserError(f"id {twice!r} is given more than once in one call; give each id once")
    for id in ids:
        if not id or not is_encodable(id):
            raise UserError(f"{id!r} cannot be an id; ids are text that UTF-8 can write, and not empty")
    return list(ids)


# Number of pictures by day, month, year, folder or place.

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
