"""Conditions in the languages of the engines; every name and literal is written here, none comes from a request."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from calligram.search.condition import Both, Comparison, Condition, Contains, Either, Missing, Sign, Value

LANCE_SIGNS: Mapping[Sign, str] = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
MILVUS_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})
WILDCARDS = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_"})


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
    if isinstance(condition, Comparison):
        return f"({name} {LANCE_SIGNS[condition.sign]} {lance_literal(condition.value)})"
    no = "NOT " if condition.negated else ""
    if isinstance(condition, Contains):
        return f"({no}contains({name}, {lance_literal(condition.text)}))"
    return f"({name} {no}IN ({', '.join(lance_literal(value) for value in condition.values)}))"


def lance_literal(value: Value) -> str:
    """A value in SQL, where a quote is doubled and nothing else is special."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    # Lance tells -0.0 from 0.0; adding zero makes them one, here and in what is stored.
    return str(value).upper() if isinstance(value, bool) else f"CAST({value + 0.0!r} AS DOUBLE)"


def to_milvus(condition: Condition) -> str:
    """A condition as Milvus's expression over dynamic fields.

    Every test first asks whether the field exists, since ``not in`` holds for missing fields there.
    """
    if isinstance(condition, Both | Either):
        word = " and " if isinstance(condition, Both) else " or "
        return "(" + word.join(to_milvus(part) for part in condition.parts) + ")"
    name = stored_name(condition.column)
    if isinstance(condition, Missing):
        return f"(exists {name})" if condition.negated else f"(not (exists {name}))"
    if isinstance(condition, Comparison):
        sign = "==" if condition.sign == "=" else condition.sign
        return f"(exists {name} and {name} {sign} {milvus_literal(condition.value)})"
    if isinstance(condition, Contains):
        test = f"{name} like {milvus_literal('%' + condition.text.translate(WILDCARDS) + '%')}"
    else:
        test = f"{name} in [{', '.join(milvus_literal(value) for value in condition.values)}]"
    return f"(exists {name} and {f'not ({test})' if condition.negated else test})"


def milvus_literal(value: Value) -> str:
    """A value in Milvus's expressions."""
    if isinstance(value, str):
        return '"' + value.translate(MILVUS_ESCAPES) + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value + 0.0)
