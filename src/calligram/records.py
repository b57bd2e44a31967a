"""Read JSON and TOML files by a schema: types, ranges, known keys, depth. What does not fit is one line that names file
and field.

A schema is a function of a value and the name of its field, which raises ``ValueError`` for another value. There is no
package for this in the core, because training runs where few packages are installed.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from calligram.checksums import CHECKSUM_KEY, seal_is_right
from calligram.errors import UserError, unknown

Schema = Callable[[Any, str], None]

MAX_FILE_BYTES = 1 << 28
MAX_TOML_BYTES = 1 << 20
"""of a file that people write; the parser is slow"""
MAX_DEPTH = 40
MAX_COUNT = 2**53
"""largest integer that every reader of JSON reads exactly"""
HAND_EDIT = f'if you edited it by hand, delete its entry "{CHECKSUM_KEY}"'


def integer(low: int = -MAX_COUNT, high: int = MAX_COUNT) -> Schema:
    """Whole numbers from ``low`` to ``high``."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _wrong(where, f"a whole number from {low} to {high}", value)

    return check


def number(value: Any, where: str) -> None:
    """Finite numbers."""
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e300 or not math.isfinite(value):
        raise _wrong(where, "a number", value)


def flag(value: Any, where: str) -> None:
    """True and false."""
    if not isinstance(value, bool):
        raise _wrong(where, "true or false", value)


def text(pattern: str = r"[^\x00]*", what: str = "a text") -> Schema:
    """Texts that match a pattern as a whole."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.DOTALL):
            raise _wrong(where, what, value)

    return check


def choice(*values: str) -> Schema:
    """One of some texts."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or value not in values:
            raise _wrong(where, " or ".join(repr(each) for each in values), value)

    return check


def optional(schema: Schema) -> Schema:
    """A value, or null."""
    return lambda value, where: None if value is None else schema(value, where)


def list_of(schema: Schema, lengths: Collection[int] | None = None) -> Schema:
    """Lists."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or (lengths is not None and len(value) not in lengths):
            raise _wrong(where, "a list" if lengths is None else f"a list of {max(lengths)}", value)
        for place, each in enumerate(value):
            schema(each, f"{where}.{place}")

    return check


def tuple_of(*schemas: Schema) -> Schema:
    """Lists with a schema for each place."""

    def check(value: Any, where: str) -> None:
        list_of(anything, (len(schemas),))(value, where)
        for place, (schema, each) in enumerate(zip(schemas, value, strict=True)):
            schema(each, f"{where}.{place}")

    return check


def map_of(schema: Schema) -> Schema:
    """Objects with any keys."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        for key, each in value.items():
            schema(each, _field(where, key))

    return check


def record(needed: Mapping[str, Schema], more: Mapping[str, Schema] | None = None, *, closed: bool = True) -> Schema:
    """Objects with known keys.

    Args:
        needed: schemas of keys that must be there.
        more: schemas of keys that may be there.
        closed: refuse other keys.
    """
    known = {**needed, **(more or {})}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        for key in needed:
            if key not in value:
                raise ValueError(f"{_field(where, key)} is missing")
        for key, each in value.items():
            if key in known:
                known[key](each, _field(where, key))
            elif closed:
                raise ValueError(str(unknown(f"field of {where}" if where else "field", key, known)))

    return check


def anything(value: Any, where: str) -> None:
    """Any value."""


def read_object(file: Path, todo: str, schema: Schema = anything) -> dict[str, Any]:
    """Read a JSON object, and compare it with its own checksum and with a schema.

    Args:
        file: may be missing.
        todo: what the user can do if the file is damaged.
        schema: of the object, without its checksum.

    Raises:
        UserError: when the file is damaged or does not fit the schema; it names the field.
        OSError: when the file cannot be read.
    """
    try:
        content = parse_json(file)
        if not isinstance(content, dict):
            raise _wrong("its content", "an object", content)
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}); {todo}") from error
    if not seal_is_right(content):
        raise UserError(f"{file} is damaged (its checksum differs); {todo}; {HAND_EDIT}")
    content.pop(CHECKSUM_KEY, None)
    check_object(file, content, schema, todo)
    return content


def read_version(file: Path, format: str, version: int, schema: Schema, todo: str) -> dict[str, Any] | None:
    """Read a JSON object that names its format and version; None where there is no such file.

    Raises:
        UserError: when the file is damaged, or of another format or a newer version.
    """
    try:
        content = read_object(file, todo, record({"format": text(), "version": integer(1)}, closed=False))
    except FileNotFoundError:
        return None
    if content["format"] != format or content["version"] > version:
        raise UserError(f"{file} has format {content['format']} {content['version']}; a newer calligram reads it")
    check_object(file, content, schema, todo)
    return content


def check_object(file: Path, content: Mapping[str, Any], schema: Schema, todo: str) -> None:
    """Compare the content of a file with a schema.

    Raises:
        UserError: when it does not fit; it names the field.
    """
    try:
        schema(content, "")
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}); {todo}") from error


def parse_json(file: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ValueError: when it is too large, is not JSON, is nested too deeply, or holds a number that is not finite.
        OSError: when it cannot be read.
    """
    if file.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"it has more than {MAX_FILE_BYTES:,} bytes")
    try:
        content = json.loads(file.read_bytes(), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_depth(content)
    return content


def parse_toml(file: Path, schema: Schema = anything) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        ValueError: when it is too large, is not TOML, is nested too deeply, or does not fit the schema.
        OSError: when it cannot be read.
    """
    if file.stat().st_size > MAX_TOML_BYTES:
        raise ValueError(f"it has more than {MAX_TOML_BYTES:,} bytes")
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_depth(content)
    map_of(plain)(content, "")
    schema(content, "")
    return content


def plain(value: Any, where: str) -> None:
    """Values that TOML and JSON share: texts, numbers, flags, and lists and objects of them; not dates."""
    if isinstance(value, dict):
        map_of(plain)(value, where)
    elif isinstance(value, list):
        list_of(plain)(value, where)
    elif not isinstance(value, str | int | float):
        raise _wrong(where, "a text, a number, true or false, a list or a table", str(value))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is not a number")


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(MAX_DEPTH):
        level = [each for one in level for each in _inner(one)]
        if not level:
            return
    raise ValueError("it is nested too deeply")


def _inner(content: Any) -> list[Any]:
    if isinstance(content, dict):
        return [each for each in content.values() if isinstance(each, dict | list)]
    return [each for each in content if isinstance(each, dict | list)] if isinstance(content, list) else []


def _field(where: str, key: str) -> str:
    return f"{where}.{key}" if where else str(key)


def _wrong(where: str, wanted: str, value: Any) -> ValueError:
    shown = json.dumps(value) if not isinstance(value, int) else str(value)[:40]
    return ValueError(f"{where} must be {wanted}, not {shown[:60]}{'...' if len(shown) > 60 else ''}")
