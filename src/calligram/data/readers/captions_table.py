"""Caption tables: ``.csv``, ``.tsv`` or ``.jsonl`` files with a column for the image and one for the caption.

All other columns are metadata of the images or of the captions.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from calligram.data.draft import CaptionRecord, ImageRecord, MetadataValue, Problems
from calligram.data.readers.text_files import read_text
from calligram.errors import UserError

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl")
IMAGE_COLUMN_NAMES = ("file", "file_name", "filename", "image", "path", "filepath", "id")
CAPTION_COLUMN_NAMES = ("caption", "text", "sentence", "description", "captions")
CLIP_IMAGE_COLUMN, CLIP_CAPTION_COLUMN = "filepath", "title"
"""columns of the tables that programs for CLIP read; elsewhere a title is metadata"""
SPLIT, IDENTITY = "split", "identity"


MIN_DIFFERING_IMAGES = 2
"""minimum number of images with different values before a column counts as caption metadata; one may be a mistake"""
TableCells = dict[str, MetadataValue | list[MetadataValue]]


@dataclass
class CaptionRow:
    """One row of a table: an image, any number of captions, and the other columns as metadata."""

    line: str
    """file name and line number, for reports"""
    image: str
    captions: list[str]
    split: str | None = None
    identity: str | None = None
    metadata: dict[str, MetadataValue] = field(default_factory=dict)


def read_table(path: Path, problems: Problems) -> list[CaptionRow]:
    """Read the usable rows of a table; other rows are skipped and reported.

    Raises:
        UserError: when the table has no column for the image.
    """
    text = read_text(path, problems)
    read = _json_rows if path.suffix.lower() == ".jsonl" else _separated_rows
    rows: list[CaptionRow] = []
    for line, cells in read(text, path, problems):
        row = _parse_row(f"{path.name} line {line}", cells, path, problems)
        if row is not None:
            rows.append(row)
    return rows


def _parse_row(line: str, cells: TableCells, path: Path, problems: Problems) -> CaptionRow | None:
    plain = {name.strip().lower(): name for name in cells}
    image, caption = _first_column(plain, IMAGE_COLUMN_NAMES), _first_column(plain, CAPTION_COLUMN_NAMES)
    if caption is None and CLIP_IMAGE_COLUMN in plain:
        caption = plain.get(CLIP_CAPTION_COLUMN)
    if image is None and path.suffix.lower() != ".jsonl":
        raise UserError(
            f"{path} has the columns {', '.join(cells)}; one must name the image "
            f"({', '.join(IMAGE_COLUMN_NAMES)}) and one hold the caption ({', '.join(CAPTION_COLUMN_NAMES[:-1])})"
        )
    if image is None or not str(cells[image] or "").strip():
        problems.skip("row without an image", line, f"needs one of {', '.join(IMAGE_COLUMN_NAMES)}")
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
        {name: _metadata_value(value) for name, value in cells.items() if name not in used},
    )


def _first_column(plain: dict[str, str], names: Sequence[str]) -> str | None:
    return next((plain[name] for name in names if name in plain), None)


def _metadata_value(value: MetadataValue | list[MetadataValue]) -> MetadataValue:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return value.strip() or None if isinstance(value, str) else value


def _json_rows(text: str, path: Path, problems: Problems) -> Iterator[tuple[int, TableCells]]:
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


def _separated_rows(text: str, path: Path, problems: Problems) -> Iterator[tuple[int, TableCells]]:
    comma = "\t" if path.suffix.lower() == ".tsv" else _separator(text)
    lines = _split_cells(text, comma, path, problems)
    header = next(lines, (0, []))[1]
    if len(set(header)) < len(header) or not header:
        raise UserError(
            f"{path} must begin with one line of distinct column names, got {', '.join(header) or 'nothing'}"
        )
    for number, cells in lines:
        item = f"{path.name} line {number}"
        if len(cells) > len(header) and header[-1].strip().lower() in CAPTION_COLUMN_NAMES:
            # The most frequent mistake: a caption with a comma and without quotes.
            problems.repair("unquoted separator in a caption", item, "the cells were joined again")
            cells = [*cells[: len(header) - 1], comma.join(cells[len(header) - 1 :])]
        if len(cells) != len(header):
            problems.skip("unreadable row", item, f"{len(cells)} cells for {len(header)} columns")
            continue
        yield number, dict(zip(header, cells, strict=True))


def _separator(text: str) -> str:
    """Return the separator of a ``.csv`` by its first line.

    Spreadsheets write semicolons where commas are decimal. Tables for CLIP have tabs, also in a ``.csv``.
    """
    first = text.lstrip().partition("\n")[0]
    return next((mark for mark in (";", "\t") if mark in first and "," not in first), ",")


def _split_cells(text: str, comma: str, path: Path, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    if path.suffix.lower() == ".tsv":
        # In a .tsv, quotes have no special meaning. Captions may start or end with a quote.
        yield from (
            (n, line.rstrip("\r").split("\t")) for n, line in enumerate(text.split("\n"), start=1) if line.strip()
        )
        return
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=comma, strict=True)
        rows = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error:
        # After an unbalanced quote, read line by line, so that one line is lost and not the rest of the file.
        rows = list(_line_by_line(text, comma, path, problems))
    yield from rows


def _line_by_line(text: str, comma: str, path: Path, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            yield from ((number, cells) for cells in csv.reader([line], delimiter=comma, strict=True) if cells)
        except csv.Error as error:
            problems.skip("unreadable row", f"{path.name} line {number}", str(error))


@dataclass
class MatchedRow:
    """A row of a table together with the record of its image and of its captions."""

    image: ImageRecord
    line: str
    """file name and line number, for reports"""
    captions: list[CaptionRecord] = field(default_factory=list)
    metadata: dict[str, MetadataValue] = field(default_factory=dict)


def add_metadata(rows: Sequence[MatchedRow], problems: Problems) -> None:
    """Add each metadata column to the images or, where it differs between captions of an image, to the captions.

    An image keeps its first value; rows with another value are reported. For caption metadata, values of rows without a
    caption are reported. Columns of a ``.csv`` are text; columns that hold only numbers become numbers.
    """
    for name in dict.fromkeys(name for row in rows for name in row.metadata):
        values = parse_numbers([row.metadata.get(name) for row in rows])
        given = [(row, value) for row, value in zip(rows, values, strict=True) if value is not None]
        if _describes_captions(given):
            _add_to_captions(name, given, problems)
        else:
            _add_to_images(name, given, problems)


def _describes_captions(given: Sequence[tuple[MatchedRow, MetadataValue]]) -> bool:
    """Whether a column describes captions (such as the annotator): it differs within half or more of the images."""
    by_image: dict[str, list[MetadataValue]] = {}
    for row, value in given:
        by_image.setdefault(row.image.id, []).append(value)
    several = [values for values in by_image.values() if len(values) > 1]
    differ = sum(not all(_equal_values(values[0], value) for value in values) for values in several)
    return differ >= MIN_DIFFERING_IMAGES and 2 * differ >= len(several)


def _equal_values(one: MetadataValue, other: MetadataValue) -> bool:
    return one == other or (one != one and other != other)  # NaN equals NaN here


def _add_to_images(name: str, given: Sequence[tuple[MatchedRow, MetadataValue]], problems: Problems) -> None:
    for row, value in given:
        kept = row.image.metadata.setdefault(name, value)
        if not _equal_values(kept, value):
            problems.skip(f"contradictory {name}", row.line, f"{row.image.id} keeps {kept!r}, not {value!r}")


def _add_to_captions(name: str, given: Sequence[tuple[MatchedRow, MetadataValue]], problems: Problems) -> None:
    for row, value in given:
        for caption in row.captions:
            caption.metadata[name] = value
        if not row.captions:
            kind = f"{name} of a row that adds no caption: not stored, the column differs between captions"
            problems.skip(kind, row.line, f"of {row.image.id}: {value!r}")


def parse_numbers(values: Sequence[MetadataValue]) -> list[MetadataValue]:
    """Convert a column to numbers if every value is a number; values with leading zeros are names, not numbers.

    >>> parse_numbers(["1", None, "12"]), parse_numbers(["1", "2.5"]), parse_numbers(["007", "1"])
    ([1, None, 12], [1.0, 2.5], ['007', '1'])
    """
    given = [v for v in values if v is not None]
    if not given or not all(isinstance(v, str) for v in given):
        return list(values)
    if any(len(str(v)) > 1 and str(v)[0] == "0" and str(v)[1].isdigit() for v in given):
        return list(values)
    number: Callable[[str], MetadataValue]
    for number in (int, float):
        try:
            return [None if v is None else number(str(v)) for v in values]
        except ValueError:
            continue
    return list(values)


def identity_numbers(names: Sequence[str]) -> dict[str, int]:
    """A number for each identity: its own if all are non-negative integers, otherwise in order of appearance."""
    distinct = list(dict.fromkeys(names))
    if all(name.isascii() and name.isdigit() for name in distinct):
        return {name: int(name) for name in distinct}
    return {name: number for number, name in enumerate(distinct)}
