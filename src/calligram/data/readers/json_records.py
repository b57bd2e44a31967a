"""JSON files of records: what should be a list of objects, taken apart without trusting it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from calligram.data.problems import Problems
from calligram.data.readers.lines import read_json
from calligram.errors import UserError

Record = Mapping[str, object]


def read_records(path: Path, problems: Problems, key: str | None = None) -> list[Record]:
    """The list of objects in a file, or under ``key`` of the object in it; anything else in it is skipped.

    Raises:
        UserError: when there is no such list.
    """
    return records_in(read_json(path, problems), path, problems, key)


def records_in(value: object, path: Path, problems: Problems, key: str | None = None) -> list[Record]:
    """As ``read_records``, for a value that was read from ``path``."""
    where = f"'{key}' of {path}" if key else str(path)
    found = value.get(key) if key and isinstance(value, dict) else value
    if not isinstance(found, list):
        raise UserError(f"{where} must be a list of objects, got {type(found).__name__}; is the format right?")
    for number, item in enumerate(found):
        if not isinstance(item, dict):
            problems.skip("unreadable record", f"{path.name} record {number}", f"{type(item).__name__}, not an object")
    return [item for item in found if isinstance(item, dict)]


def text_of(record: Record, key: str) -> str:
    """A text or number as text, empty when it is missing or anything else."""
    value = record.get(key)
    return str(value) if isinstance(value, str | int) else ""


def number_of(record: Record, key: str) -> int | None:
    """A whole number, None when it is missing or anything else."""
    try:
        return int(text_of(record, key))
    except ValueError:
        return None


def list_of(record: Record, key: str) -> list[object]:
    """A list, empty when it is missing or anything else."""
    value = record.get(key)
    return value if isinstance(value, list) else []
