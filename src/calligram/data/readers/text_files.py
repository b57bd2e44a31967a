"""Text files as people have them: with a byte order mark, in another encoding, with some broken lines."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path

from calligram.data.draft import Problems
from calligram.errors import UserError


def read_text(path: Path, problems: Problems) -> str:
    """The whole text. Lines that are not UTF-8 are read as Western European (cp1252) and reported.

    Raises:
        UserError: when the file cannot be read at all.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return decode_text(data, path.name, problems)


def decode_text(data: bytes, name: str, problems: Problems) -> str:
    """As ``read_text``, for bytes that came from the file ``name``."""
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


def read_lines(path: Path, problems: Problems) -> list[str]:
    """Lines that are not blank, without the blanks around them."""
    return [line.strip() for line in read_text(path, problems).split("\n") if line.strip()]


def read_json(path: Path, problems: Problems) -> object:
    """The value in a JSON file.

    Raises:
        UserError: when it is not JSON.
    """
    try:
        value: object = json.loads(read_text(path, problems))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); is the file whole?") from error
    return value


# JSON files of records: what should be a list of objects, taken apart without trusting it.

JsonRecord = Mapping[str, object]


def read_records(path: Path, problems: Problems, key: str | None = None) -> list[JsonRecord]:
    """The list of objects in a file, or under ``key`` of the object in it; anything else in it is skipped.

    Raises:
        UserError: when there is no such list.
    """
    return records_in(read_json(path, problems), path, problems, key)


def records_in(value: object, path: Path, problems: Problems, key: str | None = None) -> list[JsonRecord]:
    """As ``read_records``, for a value that was read from ``path``."""
    where = f"'{key}' of {path}" if key else str(path)
    found = value.get(key) if key and isinstance(value, dict) else value
    if not isinstance(found, list):
        raise UserError(f"{where} must be a list of objects, got {type(found).__name__}; is the format right?")
    for number, item in enumerate(found):
        if not isinstance(item, dict):
            problems.skip("unreadable record", f"{path.name} record {number}", f"{type(item).__name__}, not an object")
    return [item for item in found if isinstance(item, dict)]


def text_of(record: JsonRecord, key: str) -> str:
    """A text or number as text, empty when it is missing or anything else."""
    value = record.get(key)
    return str(value) if isinstance(value, str | int) else ""


def number_of(record: JsonRecord, key: str) -> int | None:
    """A whole number, None when it is missing or anything else."""
    try:
        return int(text_of(record, key))
    except ValueError:
        return None


def list_of(record: JsonRecord, key: str) -> list[object]:
    """A list, empty when it is missing or anything else."""
    value = record.get(key)
    return value if isinstance(value, list) else []


# Text files with a sentence on each line.


def read_sentences(file: Path) -> list[str]:
    """The lines of a text file, also of a compressed one that ends in .gz.

    Raises:
        UserError: for a file that cannot be read as text.
    """
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        return content.decode("utf-8").splitlines()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f"{file} could not be read as text ({error}); give a sentence per line in UTF-8") from error
