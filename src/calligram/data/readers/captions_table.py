"""Tables of captions: ``.csv``, ``.tsv`` or ``.jsonl`` with a column for the image and one for the caption."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from calligram.data.draft import Value
from calligram.data.problems import Problems
from calligram.data.readers.lines import read_text
from calligram.errors import UserError

SUFFIXES = (".csv", ".tsv", ".jsonl")
IMAGE_NAMES = ("file", "file_name", "filename", "image", "path", "id")
CAPTION_NAMES = ("caption", "text", "sentence", "description", "captions")
SPLIT, IDENTITY = "split", "identity"

Cells = dict[str, Value | list[Value]]


@dataclass
class CaptionRow:
    """One row: an image, no, one or several captions, and the further columns."""

    line: str
    """file and line, for reports"""
    image: str
    captions: list[str]
    split: str | None = None
    identity: str | None = None
    further: dict[str, Value] = field(default_factory=dict)


def read_table(path: Path, problems: Problems) -> list[CaptionRow]:
    """Every usable row of the file; the others are skipped and reported.

    Raises:
        UserError: when the file has no column for the image.
    """
    text = read_text(path, problems)
    read = _json_rows if path.suffix.lower() == ".jsonl" else _separated_rows
    rows: list[CaptionRow] = []
    for line, cells in read(text, path, problems):
        row = _row(f"{path.name} line {line}", cells, path, problems)
        if row is not None:
            rows.append(row)
    return rows


def _row(line: str, cells: Cells, path: Path, problems: Problems) -> CaptionRow | None:
    plain = {name.strip().lower(): name for name in cells}
    image, caption = _first(plain, IMAGE_NAMES), _first(plain, CAPTION_NAMES)
    if image is None and path.suffix.lower() != ".jsonl":
        raise UserError(
            f"{path} has the columns {', '.join(cells)}; one must name the image "
            f"({', '.join(IMAGE_NAMES)}) and one hold the caption ({', '.join(CAPTION_NAMES[:-1])})"
        )
    if image is None or not str(cells[image] or "").strip():
        problems.skip("row without an image", line, f"needs one of {', '.join(IMAGE_NAMES)}")
        return None
    values = cells[caption] if caption is not None else None
    several = [v for v in (values if isinstance(values, list) else [values]) if v is not None]
    texts = [v.strip() for v in several if isinstance(v, str)]
    if len(texts) < len(several):
        problems.skip("caption that is not text", line, f"{json.dumps(values, ensure_ascii=False)[:60]} is no string")
        return None
    if not any(texts):
        problems.note("row without a caption", line, str(cells[image]))
    split, identity = plain.get(SPLIT), plain.get(IDENTITY)
    used = {image, caption, split, identity}
    return CaptionRow(
        line,
        str(cells[image]).strip(),
        [t for t in texts if t],
        str(cells[split]) if split and cells[split] is not None else None,
        str(cells[identity]) if identity and cells[identity] not in (None, "") else None,
        {name: _plain(value) for name, value in cells.items() if name not in used},
    )


def _first(plain: dict[str, str], names: Sequence[str]) -> str | None:
    return next((plain[name] for name in names if name in plain), None)


def _plain(value: Value | list[Value]) -> Value:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return value.strip() or None if isinstance(value, str) else value


def _json_rows(text: str, path: Path, problems: Problems) -> Iterator[tuple[int, Cells]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            problems.skip("unreadable row", f"{path.name} line {number}", str(error))
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            problems.skip("unreadable row", f"{path.name} line {number}", "not a JSON object")


def _separated_rows(text: str, path: Path, problems: Problems) -> Iterator[tuple[int, Cells]]:
    comma = "\t" if path.suffix.lower() == ".tsv" else ","
    lines = _split_cells(text, comma, path, problems)
    header = next(lines, (0, []))[1]
    if len(set(header)) < len(header) or not header:
        raise UserError(
            f"{path} must begin with one line of distinct column names, got {', '.join(header) or 'nothing'}"
        )
    for number, cells in lines:
        item = f"{path.name} line {number}"
        if len(cells) > len(header) and header[-1].strip().lower() in CAPTION_NAMES:
            # The commonest slip of all: a caption with a comma and no quotes around it.
            problems.mend("unquoted separator in a caption", item, "the cells were joined again")
            cells = [*cells[: len(header) - 1], comma.join(cells[len(header) - 1 :])]
        if len(cells) != len(header):
            problems.skip("unreadable row", item, f"{len(cells)} cells for {len(header)} columns")
            continue
        yield number, dict(zip(header, cells, strict=True))


def _split_cells(text: str, comma: str, path: Path, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    if comma == "\t":
        # Quotes mean nothing in a .tsv: captions there begin and end with them as they please.
        yield from (
            (n, line.rstrip("\r").split("\t")) for n, line in enumerate(text.split("\n"), start=1) if line.strip()
        )
        return
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error:
        # A stray quote somewhere: read line by line, so that it costs its own line and not the rest of the file.
        rows = list(_line_by_line(text, path, problems))
    yield from rows


def _line_by_line(text: str, path: Path, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            yield from ((number, cells) for cells in csv.reader([line], strict=True) if cells)
        except csv.Error as error:
            problems.skip("unreadable row", f"{path.name} line {number}", str(error))
