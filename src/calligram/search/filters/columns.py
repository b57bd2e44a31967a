"""What can be said about an item, as columns to filter by."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.search.filters.conditions import Kind, stored_name
from calligram.search.filters.parser import storable
from calligram.search.indexing.exif import FACTS, Value
from calligram.text import NORMAL_FORM
from calligram.vectors import unit_rows

OWN: Mapping[str, Kind] = {
    **{"path": "text", "folder": "text", "name": "text", "source": "text", "bytes": "number"},
    **{"width": "number", "height": "number"},
    **{"taken": "text", "year": "number", "camera": "text", "latitude": "number", "longitude": "number"},
}
"""columns that every library has"""
TYPES: Mapping[Kind, pa.DataType] = {"number": pa.float64(), "text": pa.string(), "flag": pa.bool_()}
RESERVED = frozenset(OWN) - frozenset(FACTS) | {"id", "vector", "score", "rank", "captions"}


def kind_of(value: Value) -> Kind:
    """How a value is compared."""
    if isinstance(value, bool):
        return "flag"
    return "number" if isinstance(value, int | float) else "text"


def plain(value: Any) -> Value:
    """A value of a collection's column as a number, a text or a flag; lists and the like become JSON."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except (TypeError, ValueError):
        return str(value)


def named(columns: Iterable[str]) -> dict[str, str]:
    """What a source's columns are called in the library: plain words, none of them one of ours.

    A collection's own ``year`` or ``camera`` stands for ours; its ``path`` becomes ``path_``.
    """
    taken: dict[str, str] = {}
    for column in columns:
        name = re.sub(r"\W+", "_", column).strip("_") or "column"
        name = f"c_{name}" if name[0].isdigit() else name
        while name in RESERVED or name in taken.values():
            name += "_"
        taken[column] = name
    return taken


def fitted(values: Mapping[str, Value], kinds: dict[str, Kind]) -> dict[str, Value]:
    """Values under names whose kind they have; ``kinds`` learns new columns.

    A text that comes where numbers are expected goes to ``NAME_text``; whatever comes where text is expected becomes
    text.
    """
    out: dict[str, Value] = {}
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


def row_of(item: Mapping[str, Any], root: str) -> dict[str, Value]:
    """All columns of an item, from its row in the items table."""
    own = {name: item[name] for name in ("folder", "name", "bytes", "width", "height")}
    found: dict[str, Value] = {"path": item["key"], "source": root, **own, **json.loads(item["metadata"])}
    return {name: value for name, value in found.items() if value is not None}


def table_of(rows: Sequence[Mapping[str, Value]], kinds: Mapping[str, Kind]) -> pa.Table:
    """Rows as an Arrow table with a column for each of ``kinds``."""
    columns = {}
    for name, kind in kinds.items():
        values = [row.get(name) for row in rows]
        if kind == "number":
            values = [None if value is None else float(value) for value in values]
        columns[name] = pa.array(values, type=TYPES[kind])
    return pa.table(columns)


# What is given to an index, checked and brought into the form that is stored.

STORED: Mapping[Kind, pa.DataType] = {"number": pa.float64(), "text": pa.string(), "flag": pa.bool_()}


def stored_kind_of(column: str, type: pa.DataType) -> Kind | None:
    """Which kind of column an Arrow type makes; None for a column of nulls, which says nothing yet."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    if pa.types.is_boolean(type):
        return "flag"
    if pa.types.is_integer(type) or pa.types.is_floating(type):
        return "number"
    if pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type):
        return "text"
    if pa.types.is_null(type):
        return None
    raise UserError(f"column {column!r} has type {type}; columns to filter by hold numbers, text or true and false")


def kinds_of(columns: pa.Table) -> dict[str, Kind]:
    """The kinds of a table's columns, as a condition needs them."""
    kinds = {field.name: stored_kind_of(field.name, field.type) for field in columns.schema}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def stored_columns(columns: pa.Table, rows: int) -> pa.Table:
    """Columns under their stored names: numbers as float64, those that are not finite as missing, text composed.

    Whole numbers above 2**53 lose their last digits, as in any float.
    """
    if columns.num_columns and len(columns) != rows:
        raise UserError(f"{rows} ids with {len(columns)} rows of columns; there must be one row for each id")
    found = {}
    for name, kind in kinds_of(columns).items():
        column = columns[name].cast(STORED[kind])
        if kind == "text":
            column = pc.utf8_normalize(column, form=NORMAL_FORM)
        if kind == "number":
            column = pc.add(pc.if_else(pc.is_finite(column), column, None), 0.0)
        found[stored_name(name)] = column
    return pa.table(found)


def checked_ids(ids: Sequence[str]) -> list[str]:
    """Ids that can be stored: text, none of it twice."""
    if len(set(ids)) != len(ids):
        twice = next(id for id in ids if list(ids).count(id) > 1)
        raise UserError(f"id {twice!r} is given more than once in one call; give each id once")
    for id in ids:
        if not id or not storable(id):
            raise UserError(f"{id!r} cannot be an id; ids are text that UTF-8 can write, and not empty")
    return list(ids)


def checked_vectors(vectors: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """Vectors (N, D) at length one.

    Raises:
        UserError: for another dimension, and for vectors without a direction.
    """
    vectors = np.asarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise UserError(f"the index holds vectors of {dim} dimensions; got an array of shape {vectors.shape}")
    lengths = np.linalg.norm(vectors, axis=1)
    bad = np.flatnonzero(~np.isfinite(lengths) | (lengths < 1e-12))
    if len(bad):
        raise UserError(f"vector {bad[0]} has length {lengths[bad[0]]}; vectors must be finite and not zero")
    return unit_rows(vectors)
