"""Reading a condition that a user wrote.

    condition   = all {"or" all}
    all         = one {"and" one}
    one         = "not" one | "(" condition ")" | column test
    test        = sign value | ["not"] "in" "(" value {"," value} ")" | ["not"] "~" text | "is" ["not"] "missing"
    sign        = "=" | "!=" | "<" | "<=" | ">" | ">="
    value       = number | 'text' | "text" | 2020-05-01 | true | false
    column      = a name, in `backticks` when it has spaces or is a word of the grammar

Words may be written in capitals. A quote within quotes is doubled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple, NoReturn, cast

from calligram.errors import UserError, unknown
from calligram.search.filters.conditions import (
    Both,
    Comparison,
    Condition,
    Contains,
    Either,
    Kind,
    Missing,
    OneOf,
    Sign,
    Value,
    holds,
    opposite,
)
from calligram.text import composed

# The words of a condition, and how its mistakes are told.

WORDS = frozenset({"and", "or", "not", "in", "is", "missing", "true", "false"})
TOKENS = re.compile(
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
SPELLINGS = {"==": "=", "<>": "!="}


class Token(NamedTuple):
    """A word of a condition and where it stands."""

    kind: str
    text: str
    at: int


END = "end"


def tokens(text: str) -> list[Token]:
    """Cut a condition into its words; the last token says where it ends."""
    found, at = [], 0
    while text[at:].strip():
        match = TOKENS.match(text, at)
        if match is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            refuse(text, start, "cannot read this; text stands in quotes, and a quote within it is doubled")
        kind = str(match.lastgroup)
        word = match.group(kind)
        if kind == "name" and word.lower() in WORDS:
            kind, word = "word", word.lower()
        found.append(Token(kind, unquoted(kind, SPELLINGS.get(word, word)), match.start(str(match.lastgroup))))
        at = match.end()
    return [*found, Token(END, "", len(text))]


def unquoted(kind: str, word: str) -> str:
    """The content of quotes, with doubled ones single."""
    return word[1:-1].replace(word[0] * 2, word[0]) if kind in ("text", "quoted") else word


def refuse(text: str, at: int, why: str) -> NoReturn:
    """Say what is wrong with a condition, and where."""
    near = text[at : at + 20]
    where = f"at character {at + 1} ({near!r})" if near.strip() else "at the end"
    raise UserError(f"condition {text[:200]!r}, {where}: {why}")


def storable(text: str) -> bool:
    """Whether UTF-8 can write a text; halves of surrogate pairs cannot be stored or looked up."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


__all__ = ["Condition", "Kind", "holds", "parse"]

LONGEST = 4000
"""characters; conditions arrive in requests, and an engine's parser is not to be tried with megabytes"""
DEEPEST = 15
"""brackets and nots within each other; Lance's parser gives up at 50 levels"""


def parse(text: str, kinds: Mapping[str, Kind]) -> Condition:
    """Read a condition over the columns in ``kinds``.

    Raises:
        UserError: saying what is wrong, where, and what would be accepted.
    """
    if len(text) > LONGEST:
        raise UserError(f"the condition has {len(text)} characters; at most {LONGEST} are read")
    return Reader(text, kinds).condition()


class Reader:
    """Goes through the tokens of one condition from left to right."""

    def __init__(self, text: str, kinds: Mapping[str, Kind]):
        self.text, self.kinds = text, kinds
        self.tokens, self.next, self.depth = tokens(text), 0, 0

    def condition(self) -> Condition:
        """The whole text as one condition."""
        result = self.either()
        if self.tokens[self.next].kind != END:
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
        """A test, or something in brackets or negated."""
        self.depth += 1
        if self.depth > DEEPEST:
            self.refuse(f"more than {DEEPEST} brackets or nots within each other")
        if self.took("not"):
            result = opposite(self.one())
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
        """What is asked of a column."""
        if self.took("is"):
            negated = self.took("not")
            self.expect("missing")
            return Missing(column, negated)
        negated = self.took("not")
        if self.took("in"):
            return OneOf(column, self.values(column), negated)
        if self.took("~"):
            if self.kinds[column] != "text":
                self.refuse(f"'~' looks into text, and column {column!r} holds {self.kinds[column]}s")
            return Contains(column, str(self.value(column)), negated)
        sign = self.tokens[self.next]
        if negated or sign.kind != "sign":
            self.refuse("expected '=', '!=', '<', '<=', '>', '>=', '~', 'in (...)' or 'is missing'")
        if self.kinds[column] == "flag" and sign.text not in ("=", "!="):
            self.refuse(f"column {column!r} holds true or false; '=', '!=' and 'in' are for it")
        self.next += 1
        return Comparison(column, cast(Sign, sign.text), self.value(column))

    def values(self, column: str) -> tuple[Value, ...]:
        """Values in brackets."""
        self.expect("(")
        found = [self.value(column)]
        while self.took(","):
            found.append(self.value(column))
        self.expect(")")
        return tuple(found)

    def value(self, column: str) -> Value:
        """A value of the column's kind; a number or a date stands for its spelling where a column holds text."""
        token, kind = self.tokens[self.next], self.kinds[column]
        value: Value | None = None
        if kind == "number" and token.kind == "number" and math.isfinite(float(token.text)):
            value = float(token.text)
        elif kind == "flag" and token.text in ("true", "false") and token.kind == "word":
            value = token.text == "true"
        elif kind == "text" and token.kind in ("text", "number", "date"):
            value = token.text
        if value is None:
            accepted = {"number": "a number", "flag": "true or false", "text": "text in quotes"}[kind]
            self.refuse(f"column {column!r} wants {accepted}")
        if isinstance(value, str) and not storable(value):
            self.refuse("the text has a character that UTF-8 cannot write")
        self.next += 1
        return composed(value) if isinstance(value, str) else value

    def took(self, text: str) -> bool:
        """Step over a word, sign or mark if it is next."""
        token = self.tokens[self.next]
        found = token.text == text and token.kind in ("word", "sign", "mark")
        self.next += found
        return found

    def expect(self, text: str) -> None:
        """Step over a word or mark that must be next."""
        if not self.took(text):
            self.refuse(f"expected '{text}'")

    def refuse(self, why: str) -> NoReturn:
        """Say what is wrong with the next token."""
        refuse(self.text, self.tokens[self.next].at, why)
