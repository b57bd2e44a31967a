"""Captions in a file, for images of a collection: lists that people fill in."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from calligram.data.add_captions import NewCaption, clean_caption
from calligram.data.collection import Collection
from calligram.data.draft import Problems
from calligram.data.readers.captions_table import TABLE_SUFFIXES, CaptionRow, read_table
from calligram.data.readers.source import SPLIT_NAMES, canonical_split
from calligram.errors import UserError

MAX_LISTED_ROWS = 5
"""rows that a message names"""


class CaptionList(NamedTuple):
    """What a file holds."""

    captions: list[NewCaption]
    empty_rows: int
    """rows without a caption"""


def read_captions(collection: Collection, file: Path, problems: Problems) -> CaptionList:
    """Captions of a ``.csv``, ``.tsv`` or ``.jsonl`` as ``calligram import folder`` reads it.

    Images are named by their id, or by the name or the path of their file. Rows without a caption are left out.

    Raises:
        UserError: when the file or a row of it cannot be read, or names an image that is not there or not the only
            one of its name, or a split that is none.
    """
    if file.suffix.lower() not in TABLE_SUFFIXES:
        raise UserError(f"{file} is not a list of captions; known: {', '.join(TABLE_SUFFIXES)}")
    rows = read_table(file, problems)
    _refuse_skipped_rows(file, problems)
    known = _image_ids_by_name(collection)
    captions, empty = [], 0
    for row in rows:
        if not row.captions:
            empty += 1
            continue
        image = known.get(row.image, known.get(PurePath(row.image).name))
        if image is None:
            why = "several images have this file name" if row.image in known else "no image has this id or file name"
            raise UserError(f"{row.line} is about '{row.image}', but {why} in {collection.folder}")
        for text in row.captions:
            try:
                captions.append(NewCaption(image, clean_caption(text), _split_of_row(row)))
            except UserError as error:
                raise UserError(f"{row.line}: {error}") from None
    return CaptionList(captions, empty)


def _refuse_skipped_rows(file: Path, problems: Problems) -> None:
    """All or none: a row that was left out would be missed by nobody."""
    skipped = [problem for problem in problems.found if problem.skipped]
    if skipped:
        named = "; ".join(f"{p.item}: {p.kind}, {p.detail}" for p in skipped[:MAX_LISTED_ROWS])
        more = f"; and {len(skipped) - MAX_LISTED_ROWS} more" if len(skipped) > MAX_LISTED_ROWS else ""
        raise UserError(f"{file} is not added, since rows of it cannot be read ({named}{more}); mend or remove them")


def _split_of_row(row: CaptionRow) -> str | None:
    found = Problems()
    split = canonical_split(row.split, row.line, found)
    if found.found:
        raise UserError(f"there is no split '{row.split}'; known: {', '.join(SPLIT_NAMES)}, or leave it empty")
    return split


def write_caption_list(
    file: Path, rows: Iterable[Sequence[object]], columns: Sequence[str] = ("image", "caption", "path", "why")
) -> None:
    """A ``.csv`` that ``read_captions`` takes when it is filled in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(rows)


def refuse_list_with_captions(file: Path) -> None:
    """Make sure that writing a list to ``file`` loses nobody's work.

    Raises:
        UserError: when it holds captions, or is something else than such a list.
    """
    if not file.is_file() or not file.stat().st_size:
        return
    problems = Problems()
    try:
        captions = sum(len(row.captions) for row in read_table(file, problems))
    except UserError:
        raise UserError(f"{file} is there and is not a list of images; choose another name, or remove it") from None
    if captions or any(problem.skipped for problem in problems.found):
        held = f"{captions} caption{'s' * (captions != 1)}" if captions else "rows that cannot be read"
        raise UserError(f"{file} holds {held}, which would be lost; choose another name, or remove it")


def _image_ids_by_name(collection: Collection) -> dict[str, str | None]:
    """The id behind every name of an image; None where several have it. Ids come first."""
    ids, paths = collection.column("images", "id"), collection.column("images", "path")
    names: dict[str, str | None] = {}
    for image, path in zip(ids, paths, strict=True):
        if path is not None:
            for name in {str(path), str(collection.folder / str(path)), PurePath(str(path)).name}:
                names[name] = None if name in names else str(image)
    return {**names, **{str(image): str(image) for image in ids}}
