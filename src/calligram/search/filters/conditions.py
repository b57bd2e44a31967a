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
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from calligram.text import composed

Kind = Literal["number", "text", "flag"]
"""what a column holds; dates are text in ISO order"""

Value: TypeAlias = float | str | bool
"""a value a column is compared with; numbers are floats, also where a column holds whole ones"""


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
    """``column sign value``; text is in normal form C, here and below, and compared by code points."""

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
    value = composed(value) if isinstance(value, str) else value
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


# Conditions in the languages of the engines; every name and literal is written here, none comes from a request.

LANCE_SIGNS: Mapping[Sign, str] = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
MILVUS_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})
STAND_INS = str.maketrans({"%": "\U0010fff0", "_": "\U0010fff1", "\\": "\U0010fff2"})
"""characters that are special in ``like``, and ones for private use that stand for them"""


def stored_name(column: str) -> str:
    """What an engine calls a column: lower-case letters and digits, whatever the column's own name is.

    Engines differ in how they quote names, in dots and in capitals; these names need none of it and never meet
    ``id`` or ``vector``.

    >>> stored_name("year"), stored_name("Shot at")
    ('c_year', 'c__53hot_20at')
    """
    plain = (c if c.isascii() and (c.islower() or c.isdigit()) else f"_{ord(c):x}" for c in column)
    return "c_" + "".join(plain)


def to_lance(condition: Condition, known: Collection[str] | None = None) -> str:
    """A condition as Lance's filter.

    Args:
        condition: what to ask.
        known: stored names of the columns the table has; the others are missing in every row. All when None.
    """
    if isinstance(condition, Both | Either):
        word = " AND " if isinstance(condition, Both) else " OR "
        return "(" + word.join(to_lance(part, known) for part in condition.parts) + ")"
    name = stored_name(condition.column)
    if known is not None and name not in known:
        return "TRUE" if isinstance(condition, Missing) and not condition.negated else "FALSE"
    if isinstance(condition, Missing):
        return f"({name} IS {'NOT ' if condition.negated else ''}NULL)"
    return f"({name} IS NOT NULL AND {_lance_test(name, condition)})"


def _lance_test(name: str, condition: Comparison | Contains | OneOf) -> str:
    """What is asked of a value that is there.

    That there is one has to be said: "n <> 0 OR n NOT IN (1)" is taken for true by the engine, also where n is missing.
    """
    if isinstance(condition, Comparison):
        return f"{name} {LANCE_SIGNS[condition.sign]} {lance_literal(condition.value)}"
    no = "NOT " if condition.negated else ""
    if isinstance(condition, Contains):
        return f"{no}contains({name}, {lance_literal(condition.text)})"
    return f"{name} {no}IN ({', '.join(lance_literal(value) for value in condition.values)})"


def lance_literal(value: Value) -> str:
    """A value in SQL, where a quote is doubled and nothing else is special."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    # Lance tells -0.0 from 0.0; adding zero makes them one, here and in what is stored.
    return str(value).upper() if isinstance(value, bool) else f"CAST({value + 0.0!r} AS DOUBLE)"


def to_milvus(condition: Condition) -> str:
    """A condition as Milvus's expression over the JSON field ``about``, where missing values have no key.

    Every test first asks whether there is a value, since a negated test holds without one there.
    """
    if isinstance(condition, Both | Either):
        word = " and " if isinstance(condition, Both) else " or "
        return "(" + word.join(to_milvus(part) for part in condition.parts) + ")"
    field = milvus_field(stored_name(condition.column))
    if isinstance(condition, Missing):
        return f"(exists {field})" if condition.negated else f"(not (exists {field}))"
    if isinstance(condition, Comparison):
        sign = "==" if condition.sign == "=" else condition.sign
        return f"(exists {field} and {field} {sign} {milvus_literal(condition.value)})"
    if isinstance(condition, Contains):
        test = milvus_contains(condition)
    else:
        # Not "in", which the embedded engine takes for plain fields only.
        test = " or ".join(f"{field} == {milvus_literal(value)}" for value in condition.values)
    return f"(exists {field} and {'not ' if condition.negated else ''}({test}))"


def milvus_contains(condition: Contains) -> str:
    """``like`` without characters that are special in it, which are escaped differently by server and embedded engine.

    Text with such a character is stored a second time with others in their place, and is looked for there.
    """
    name, text = stored_name(condition.column), condition.text
    pattern = milvus_literal(f"%{text.translate(STAND_INS)}%")
    if text.translate(STAND_INS) == text:
        return f"{milvus_field(name)} like {pattern}"
    second = milvus_field(second_name(name))
    return f"exists {second} and {second} like {pattern}"


def milvus_field(name: str) -> str:
    """How a stored column is named in an expression."""
    return f'about["{name}"]'


def second_name(name: str) -> str:
    """Where the text of a stored column stands with other characters for those that are special in ``like``."""
    return f"like_{name}"


def milvus_literal(value: Value) -> str:
    """A value in Milvus's expressions."""
    if isinstance(value, str):
        return '"' + value.translate(MILVUS_ESCAPES) + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value + 0.0)
