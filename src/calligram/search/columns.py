"""What can be said about an item, as columns to filter by."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from calligram.search.metadata import FACTS, Value
from calligram.search.where import Kind

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
