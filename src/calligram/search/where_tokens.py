"""The words of a condition, and how its mistakes are told."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from calligram.errors import UserError

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
