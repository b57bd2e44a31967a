"""What is given to an index, checked and brought into the form that is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.search.compiling import stored_name
from calligram.search.condition import FORM, Kind
from calligram.search.where_tokens import storable

STORED: Mapping[Kind, pa.DataType] = {"number": pa.float64(), "text": pa.string(), "flag": pa.bool_()}


def kind_of(column: str, type: pa.DataType) -> Kind | None:
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
    kinds = {field.name: kind_of(field.name, field.type) for field in columns.schema}
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
            column = pc.utf8_normalize(column, form=FORM)
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


def unit(vectors: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """Vectors (N, D) at length one.

    Raises:
        UserError: for another dimension, and for vectors without a direction.
    """
    vectors = np.asarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise UserError(f"the index holds vectors of {dim} dimensions; got an array of shape {vectors.shape}")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    bad = np.flatnonzero(~np.isfinite(lengths[:, 0]) | (lengths[:, 0] < 1e-12))
    if len(bad):
        raise UserError(f"vector {bad[0]} has length {lengths[bad[0], 0]}; vectors must be finite and not zero")
    return np.asarray(vectors / lengths, dtype=np.float32)
