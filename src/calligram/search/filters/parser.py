"""Parse a condition that a user wrote.

    condition   = all {"or" all}
    all         = one {"and" one}
    one         = "not" one | "(" condition ")" | column test
    test        = sign value | ["not"] "in" "(" value {"," value} ")" | ["not"] "~" text | ["not"] "under" text
                | "is" ["not"] "missing"
    sign        = "=" | "!=" | "<" | "<=" | ">" | ">="
    value       = number | 'text' | "text" | 2020-05-01 | true | false
    column      = a name, in `backticks` when it has spaces or is a word of the grammar

Words may be written in capitals. A quote within quotes is doubled. A column of dates is compared with periods: a year,
a month, a day, or words such as 'last summer' (``dates``). ``folder under 'trip'`` is the folder and all folders in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple, NoReturn, cast

from calligram.errors import UserError, unknown
from calligram.search.filters.columns import DATE_COLUMNS, ColumnKind
from calligram.search.filters.conditions import (
    Both,
    Comparison,
    Condition,
    Contains,
    Either,
    Missing,
    OneOf,
    Operand,
    Sign,
    holds,
    negate,
)
from calligram.search.filters.dates import Period, parse_period
from calligram.text import composed, is_encodable

__all__ = ["Condition", "holds", "named_columns", "parse"]

MAX_CHARACTERS = 4000
"""conditions arrive in requests, and no engine should have to parse megabytes"""
MAX_DEPTH = 15
"""nested brackets and nots; Lance's parser fails at 50"""
END_TOKEN = "end"

RESERVED_WORDS = frozenset({"and", "or", "not", "in", "is", "missing", "true", "false"})
POINT_IN_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ].+")
"""a day and a time in ISO order"""
TOKEN_PATTERN = re.compile(
    r"""\s*(?:
    (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    |(?P<quoted>`(?:[^`]|``)+`)
    |(?P<date>\d{4}-\d{2}(?:-\d{2}(?:T[\d:.]+(?:Z|[+-]\d{2}:\d{2})?)?)?(?![\w.]))
    |(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    |(?P<name>[^\W\d][\w.-]*)
    |(?P<sign>!=|<>|<=|>=|==|=|<|>|~)
    |(?P<mark>[(),])
    )""",
    re.VERBOSE,
)
SIGN_SYNONYMS = {"==": "=", "<>": "!="}


class Token(NamedTuple):
    """A token of a condition, and the character where it starts."""

    kind: str
    text: str
    start: int


def tokens(text: str) -> list[Token]:
    """The tokens of a condition; the last one is its end."""
    found, position = [], 0
    while text[position:].strip():
        match = TOKEN_PATTERN.match(text, position)
        if match is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            refuse(text, start, "cannot read this; put text in quotes, and double a quote within it")
        kind = str(match.lastgroup)
        word = match.group(kind)
        if kind == "name" and word.lower() in RESERVED_WORDS:
            kind, word = "word", word.lower()
        found.append(Token(kind, unquoted(kind, SIGN_SYNONYMS.get(word, word)), match.start(str(match.lastgroup))))
        position = match.end()
    return [*found, Token(END_TOKEN, "", len(text))]


def unquoted(kind: str, word: str) -> str:
    """The text within quotes, with doubled quotes as single ones."""
    return word[1:-1].replace(word[0] * 2, word[0]) if kind in ("text", "quoted") else word


def refuse(text: str, start: int, why: str) -> NoReturn:
    """Raise an error that says what is wrong with a condition, and where."""
    near = text[start : start + 20]
    where = f"at character {start + 1} ({near!r})" if near.strip() else "at the end"
    raise UserError(f"condition {text[:200]!r}, {where}: {why}")


def parse(text: str, kinds: Mapping[str, ColumnKind]) -> Condition:
    """Parse a condition.

    Args:
        text: of the condition.
        kinds: of the columns that it may use.

    Raises:
        UserError: with what is wrong, where, and what is accepted.
    """
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"the condition has {len(text)} characters; at most {MAX_CHARACTERS} are accepted")
    return ConditionParser(text, kinds).condition()


def named_columns(text: str) -> set[str]:
    """The names in a condition, in lower case; none for a text that is no condition, which ``parse`` refuses.

    >>> sorted(named_columns("year > 2020 and not (`Shot at` ~ 'latitude')"))
    ['shot at', 'year']
    """
    try:
        return {token.text.lower() for token in tokens(text) if token.kind in ("name", "quoted")}
    except UserError:
        return set()


class ConditionParser:
    """A recursive-descent parser of one condition."""

    def __init__(self, text: str, kinds: Mapping[str, ColumnKind]):
        self.text, self.kinds = text, kinds
        self.tokens, self.next, self.depth = tokens(text), 0, 0

    def condition(self) -> Condition:
        """The whole text as one condition."""
        result = self.either()
        if self.tokens[self.next].kind != END_TOKEN:
            self.refuse("expected 'and', 'or' or the end")
        return result

    def either(self) -> Condition:
        """Conditions joined by ``or``."""
        parts = [self.both()]
        while self.took("or"):
            parts.append(self.both())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def both(self) -> Condition:
        """Conditions joined by ``and``, which binds more tightly than ``or``."""
        parts = [self.one()]
        while self.took("and"):
            parts.append(self.one())
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def one(self) -> Condition:
        """A test, or a condition in brackets or after ``not``."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.refuse(f"more than {MAX_DEPTH} nested brackets or nots")
        if self.took("not"):
            result = negate(self.one())
        elif self.took("("):
            result = self.either()
            self.expect(")")
        else:
            result = self.test(self.column())
        self.depth -= 1
        return result

    def column(self) -> str:
        """The name of a known column."""
        token = self.tokens[self.next]
        if token.kind not in ("name", "quoted"):
            self.refuse(f"expected a column, 'not' or '('; columns: {', '.join(sorted(self.kinds))}")
        if token.text not in self.kinds:
            self.refuse(str(unknown("column", token.text, self.kinds)))
        self.next += 1
        return token.text

    def test(self, column: str) -> Condition:
        """The test of a column."""
        if self.took("is"):
            negated = self.took("not")
            self.expect("missing")
            return Missing(column, negated)
        negated = self.took("not")
        if self.took("in"):
            if column in DATE_COLUMNS:
                found = Either(tuple(_in_period("=", column, self.date_value(value)) for value in self.values(column)))
                return negate(found) if negated else found
            return OneOf(column, self.values(column), negated)
        if self.tokens[self.next].kind == "name" and self.tokens[self.next].text.lower() == "under":
            self.next += 1
            inside = self.under(column)
            return negate(inside) if negated else inside
        if self.took("~"):
            if self.kinds[column] != "text":
                self.refuse(f"'~' is for columns of text, and column {column!r} holds {self.kinds[column]}s")
            return Contains(column, str(self.value(column)), negated)
        sign = self.tokens[self.next]
        if negated or sign.kind != "sign":
            self.refuse("expected '=', '!=', '<', '<=', '>', '>=', '~', 'in (...)' or 'is missing'")
        if self.kinds[column] == "flag" and sign.text not in ("=", "!="):
            self.refuse(f"column {column!r} holds true or false; use '=', '!=' or 'in'")
        self.next += 1
        if column in DATE_COLUMNS:
            return _in_period(cast(Sign, sign.text), column, self.date_value(self.value(column)))
        return Comparison(column, cast(Sign, sign.text), self.value(column))

    def under(self, column: str) -> Condition:
        """A folder, or any folder within it: names that begin with it and a slash."""
        if self.kinds[column] != "text":
            self.refuse(f"'under' is for columns of text, and column {column!r} holds {self.kinds[column]}s")
        folder = str(self.value(column)).rstrip("/")
        # No text that begins with "/" comes after the character that follows the slash.
        inside = Both((Comparison(column, ">=", folder + "/"), Comparison(column, "<", folder + chr(ord("/") + 1))))
        return Either((Comparison(column, "=", folder), inside))

    def date_value(self, value: Operand) -> str | Period:
        """A point in time as it is, or the days of a year, a month, a day or of words; the token is taken already."""
        text = str(value)
        if POINT_IN_TIME.fullmatch(text):
            return text
        try:
            return parse_period(text)
        except UserError as error:
            self.next -= 1
            self.refuse(str(error))

    def values(self, column: str) -> tuple[Operand, ...]:
        """Values in brackets."""
        self.expect("(")
        found = [self.value(column)]
        while self.took(","):
            found.append(self.value(column))
        self.expect(")")
        return tuple(found)

    def value(self, column: str) -> Operand:
        """A value of the column's kind; for a column of text, a number or a date is taken as text."""
        token, kind = self.tokens[self.next], self.kinds[column]
        value: Operand | None = None
        if kind == "number" and token.kind == "number" and math.isfinite(float(token.text)):
            value = float(token.text)
        elif kind == "flag" and token.text in ("true", "false") and token.kind == "word":
            value = token.text == "true"
        elif kind == "text" and token.kind in ("text", "number", "date"):
            value = token.text
        if value is None:
            accepted = {"number": "a number", "flag": "true or false", "text": "text in quotes"}[kind]
            self.refuse(f"column {column!r} needs {accepted}")
        if isinstance(value, str) and not is_encodable(value):
            self.refuse("the text has a character that UTF-8 cannot encode")
        self.next += 1
        return composed(value) if isinstance(value, str) else value

    def took(self, text: str) -> bool:
        """Consume a word, sign or mark if it is the next token; returns whether it was."""
        token = self.tokens[self.next]
        found = token.text == text and token.kind in ("word", "sign", "mark")
        self.next += found
        return found

    def expect(self, text: str) -> None:
        """Consume a word or mark that must be the next token."""
        if not self.took(text):
            self.refuse(f"expected '{text}'")

    def refuse(self, why: str) -> NoReturn:
        """Raise an error about the next token."""
        refuse(self.text, self.tokens[self.next].start, why)


def _in_period(sign: Sign, column: str, value: str | Period) -> Condition:
    """The comparison of a point in time with another, or with the days of a period."""
    if isinstance(value, str):
        return Comparison(column, sign, value)
    since, before = Comparison(column, ">=", value.start), Comparison(column, "<", value.start)
    after, until = Comparison(column, ">=", value.end), Comparison(column, "<", value.end)
    tests: dict[Sign, Condition] = {"=": Both((since, until)), "!=": Either((before, after))}
    return (tests | {"<": before, "<=": until, ">": after, ">=": since})[sign]
