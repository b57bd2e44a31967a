"""Robust reading of text and JSON files: byte order marks, other encodings, damaged lines and records."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path

from calligram.data.draft import Problems
from calligram.errors import UserError
from calligram.files import read_regular

MAX_TEXT_BYTES = 4_000_000_000
"""larger files are refused, because a text takes several times its size in memory"""
JsonRecord = Mapping[str, object]


def read_text(path: Path, problems: Problems, most: int = MAX_TEXT_BYTES) -> str:
    """Read a text file. Lines that are not UTF-8 are decoded as Western European (cp1252) and reported.

    Args:
        most: size in bytes that is accepted.

    Raises:
        UserError: when the file cannot be read, is not a regular file, or is too large.
    """
    try:
        data = read_regular(path, most)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from error
    return decode_text(data, path.name, problems)


def decode_text(data: bytes, name: str, problems: Problems) -> str:
    """As ``read_text``, for the bytes of the file ``name``."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        return "\n".join(_decode_line(line, f"{name} line {n}", problems) for n, line in enumerate(lines, start=1))


def _decode_line(line: bytes, item: str, problems: Problems) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        problems.repair("not UTF-8: read as Western European", item)
        try:
            return line.decode("cp1252")
        except UnicodeDecodeError:
            return line.decode("latin-1")


def read_lines(path: Path, problems: Problems, most: int = MAX_TEXT_BYTES) -> list[str]:
    """The non-empty lines of a text file, without surrounding spaces."""
    return [line.strip() for line in read_text(path, problems, most).split("\n") if line.strip()]


def read_sentences(file: Path) -> list[str]:
    """The lines of a text file, which may be compressed (``.gz``).

    Raises:
        UserError: when the file cannot be read as UTF-8 text.
    """
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        return content.decode("utf-8").splitlines()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f"{file} cannot be read as text ({error}); give one sentence per line in UTF-8") from error


def read_json(path: Path, problems: Problems) -> object:
    """Read a JSON file.

    Raises:
        UserError: when the file is not valid JSON.
    """
    try:
        value: object = json.loads(read_text(path, problems))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); is the file complete?") from error
    return value


def read_records(path: Path, problems: Problems, key: str | None = None) -> list[JsonRecord]:
    """Read a list of objects from a JSON file, or from ``key`` of the object in it; other items are skipped.

    Raises:
        UserError: when the file has no such list.
    """
    return records_in(read_json(path, problems), path, problems, key)


def records_in(value: object, path: Path, problems: Problems, key: str | None = None) -> list[JsonRecord]:
    """As ``read_records``, for a parsed value of the file ``path``."""
    where = f"'{key}' of {path}" if key else str(path)
    found = value.get(key) if key and isinstance(value, dict) else value
    if not isinstance(found, list):
        raise UserError(f"{where} must be a list of objects, got {type(found).__name__}; is the format right?")
    for number, item in enumerate(found):
        if not isinstance(item, dict):
            problems.skip("unreadable record", f"{path.name} record {number}", f"{type(item).__name__}, not an object")
    return [item for item in found if isinstance(item, dict)]


def text_of(record: JsonRecord, key: str) -> str:
    """A string or an integer as a string; empty when it is missing or has another type."""
    value = record.get(key)
    return str(value) if isinstance(value, str | int) else ""


def number_of(record: JsonRecord, key: str) -> int | None:
    """An integer; None when it is missing or not an integer."""
    try:
        return int(text_of(record, key))
    except ValueError:
        return None


def list_of(record: JsonRecord, key: str) -> list[object]:
    """A list; empty when it is missing or has another type."""
    value = record.get(key)
    return value if isinstance(value, list) else []
