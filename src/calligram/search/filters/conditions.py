"""Conditions on the metadata of items: a syntax tree, its meaning, and its form in the languages of the engines.

Example: ``year >= 2020 and (camera ~ 'Canon' or not folder in ('raw', 'old'))``, parsed by ``parser.parse``. A value
may be missing. A comparison with a missing value is false, with any operator and also under ``not``. The tests ``is
missing`` and ``is not missing`` find missing values. The parser therefore moves ``not`` down to the comparisons, and
the tree has no node for it. The result does not depend on how an engine treats nulls.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from calligram.search.filters.columns import stored_name
from calligram.text import composed

Operand: TypeAlias = float | str | bool
"""a value that a column is compared with; numbers are floats, also for a column of integers"""


Sign = Literal["=", "!=", "<", "<=", ">", ">="]

NEGATED_SIGNS: Mapping[Sign, Sign] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
OPERATORS: Mapping[Sign, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Comparison:
    """``column sign value``. Text is in Unicode normal form C, here and below, and compared by code points."""

    column: str
    sign: Sign
    value: Operand


@dataclass(frozen=True)
class OneOf:
    """``column in (values)``."""

    column: str
    values: tuple[Operand, ...]
    negated: bool = False


@dataclass(frozen=True)
class Contains:
    """``column ~ text``: the column contains the text, case-sensitively."""

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
    """All parts hold."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Either:
    """At least one part holds."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = Comparison | OneOf | Contains | Missing | Both | Either


def negate(condition: Condition) -> Condition:
    """The condition ``not condition``, by De Morgan's laws; an item with a missing value satisfies neither."""
    match condition:
        case Comparison():
            return replace(condition, sign=NEGATED_SIGNS[condition.sign])
        case Both(parts):
            return Either(tuple(negate(part) for part in parts))
        case Either(parts):
            return Both(tuple(negate(part) for part in parts))
        case _:
            return replace(condition, negated=not condition.negated)


def columns_of(condition: Condition) -> set[str]:
    """The columns of a condition."""
    if isinstance(condition, Both | Either):
        return set().union(*(columns_of(part) for part in condition.parts))
    return {condition.column}


def holds(condition: Condition, row: Mapping[str, object]) -> bool:
    """Whether one item satisfies a condition.

    This defines the meaning of a condition: tests compare the engines with it. It also filters a few rows in memory.

    Args:
        condition: to test.
        row: values by column; None, numbers that are not finite and columns that are absent count as missing.
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
            return OPERATORS[sign](value, wanted)
        case OneOf(_, values, negated):
            return (value in values) != negated
        case Contains(_, text, negated):
            return (text in str(value)) != negated


# Conditions in the languages of the engines. All names and literals are quoted here.

LANCE_SIGNS: Mapping[Sign, str] = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
MILVUS_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})
LIKE_SUBSTITUTES = str.maketrans({"%": "\U0010fff0", "_": "\U0010fff1", "\\": "\U0010fff2"})
"""characters that are special in ``like``, and private-use characters that replace them"""


def to_lance(condition: Condition, known: Collection[str] | None = None) -> str:
    """A condition as a filter of Lance.

    Args:
        condition: to translate.
        known: stored names of the table's columns; other columns count as missing in every row. All are known for None.
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
    """The test of a value that is not null.

    The caller tests for null first: the engine takes "n <> 0 OR n NOT IN (1)" for true also where n is null.
    """
    if isinstance(condition, Comparison):
        return f"{name} {LANCE_SIGNS[condition.sign]} {lance_literal(condition.value)}"
    no = "NOT " if condition.negated else ""
    if isinstance(condition, Contains):
        return f"{no}contains({name}, {lance_literal(condition.text)})"
    return f"{name} {no}IN ({', '.join(lance_literal(value) for value in condition.values)})"


def lance_literal(value: Operand) -> str:
    """A value in SQL, where a quote is doubled and no other character is special."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    # For Lance, -0.0 and 0.0 differ; adding zero makes them equal, here and in the stored columns.
    return str(value).upper() if isinstance(value, bool) else f"CAST({value + 0.0!r} AS DOUBLE)"


def to_milvus(condition: Condition) -> str:
    """A condition as an expression of Milvus over the JSON field ``about``, in which missing values have no key.

    Each test first checks that the key exists, because a negated test is true without it.
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
        # Not "in": the embedded engine accepts it for plain fields only.
        test = " or ".join(f"{field} == {milvus_literal(value)}" for value in condition.values)
    return f"(exists {field} and {'not ' if condition.negated else ''}({test}))"


def milvus_contains(condition: Contains) -> str:
    """A ``like`` test without special characters, which the server and the embedded engine escape differently.

    Text with a special character is stored a second time with substitutes, and the test uses that copy.
    """
    name, text = stored_name(condition.column), condition.text
    pattern = milvus_literal(f"%{text.translate(LIKE_SUBSTITUTES)}%")
    if text.translate(LIKE_SUBSTITUTES) == text:
        return f"{milvus_field(name)} like {pattern}"
    second = milvus_field(substituted_name(name))
    return f"exists {second} and {second} like {pattern}"


def milvus_field(name: str) -> str:
    """A stored column in an expression."""
    return f'about["{name}"]'


def substituted_name(name: str) -> str:
    """The key of the copy of a stored column in which characters that are special in ``like`` are substituted."""
    return f"like_{name}"


def milvus_literal(value: Operand) -> str:
    """A value in an expression of Milvus."""
    if isinstance(value, str):
        return '"' + value.translate(MILVUS_ESCAPES) + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value + 0.0)
