"""Conditions in the languages of the engines; every name and literal is written here, none comes from a request."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from calligram.search.condition import (
    Both,
    Comparison,
    Condition,
    Contains,
    Either,
    Missing,
    OneOf,
    Sign,
    Value,
)

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
