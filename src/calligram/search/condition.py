"""Conditions on the metadata of items, as a small tree that every engine can be asked.

``year >= 2020 and (camera ~ 'Canon' or not folder in ('raw', 'old'))``, read by ``where.parse``. A value may be
missing. A comparison with a missing value holds for no item, whatever the operator and also under ``not``; ``is
missing`` and ``is not missing`` are how to ask. ``not`` is therefore carried down to the comparisons when a condition
is read, and the tree has no node for it: an engine's own logic of nulls never shows.

See also: ``compiling``, which writes a condition in the languages of the engines.
"""

from __future__ import annotations

import math
import operator
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

Kind = Literal["number", "text", "flag"]
"""what a column holds; dates are text in ISO order"""

Value: TypeAlias = float | str | bool
"""a value a column is compared with; numbers are floats, also where a column holds whole ones"""

FORM: Literal["NFC"] = "NFC"
"""an é may be one character or two that look the same, and file names have either; text is compared composed"""

Sign = Literal["=", "!=", "<", "<=", ">", ">="]

OPPOSITE: Mapping[Sign, Sign] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
COMPARES: Mapping[Sign, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Comparison:
    """``column sign value``; text is composed (``FORM``), here and below, and compared by code points."""

    column: str
    sign: Sign
    value: Value


@dataclass(frozen=True)
class OneOf:
    """``column in (values)``."""

    column: str
    values: tuple[Value, ...]
    negated: bool = False


@dataclass(frozen=True)
class Contains:
    """``column ~ text``: the text occurs in the column's, upper and lower case told apart."""

    column: str
    text: str
    negated: bool = False


@dataclass(frozen=True)
class Missing:
    """``column is missing``."""

    column: str
    negated: bool = False


@dataclass(frozen=True)
class Both:
    """Every part holds."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Either:
    """At least one part holds."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = Comparison | OneOf | Contains | Missing | Both | Either


def opposite(condition: Condition) -> Condition:
    """What ``not condition`` asks; items whose value is missing satisfy neither (De Morgan, down to the leaves)."""
    match condition:
        case Comparison():
            return replace(condition, sign=OPPOSITE[condition.sign])
        case Both(parts):
            return Either(tuple(opposite(part) for part in parts))
        case Either(parts):
            return Both(tuple(opposite(part) for part in parts))
        case _:
            return replace(condition, negated=not condition.negated)


def columns_of(condition: Condition) -> set[str]:
    """The columns a condition asks about."""
    if isinstance(condition, Both | Either):
        return set().union(*(columns_of(part) for part in condition.parts))
    return {condition.column}


def holds(condition: Condition, row: Mapping[str, object]) -> bool:
    """Whether one item satisfies a condition, by its literal meaning.

    This is what the compiled conditions are tested against, and what filters a handful of rows in memory.

    Args:
        row: values by column; None, numbers that are not finite and columns that are not there are missing.
    """
    match condition:
        case Both(parts):
            return all(holds(part, row) for part in parts)
        case Either(parts):
            return any(holds(part, row) for part in parts)
    value = row.get(condition.column)
    value = unicodedata.normalize(FORM, value) if isinstance(value, str) else value
    missing = value is None or (isinstance(value, float) and not math.isfinite(value))
    if isinstance(condition, Missing):
        return missing != condition.negated
    if missing:
        return False
    match condition:
        case Comparison(_, sign, wanted):
            return COMPARES[sign](value, wanted)
        case OneOf(_, values, negated):
            return (value in values) != negated
        case Contains(_, text, negated):
            return (text in str(value)) != negated
