"""Text files as people have them: with a byte order mark, in another encoding, with some broken lines."""

from __future__ import annotations

import json
from pathlib import Path

from calligram.data.problems import Problems
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
        problems.mend("not UTF-8: read as Western European", item)
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
