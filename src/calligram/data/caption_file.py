"""Caption lists: tables with captions of the images of a collection. Read filled-in lists, and write empty ones."""

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
from calligram.files import replace_file

MAX_LISTED_ROWS = 5
"""number of rows that an error message lists"""


class CaptionList(NamedTuple):
    """The content of a caption list."""

    captions: list[NewCaption]
    empty_rows: int
    """number of rows without a caption"""


def read_captions(collection: Collection, file: Path, problems: Problems) -> CaptionList:
    """Read a caption list: a ``.csv``, ``.tsv`` or ``.jsonl`` file in the format of ``calligram import folder``.

    A row names its image by id, by file name or by path. Rows without a caption are skipped.

    Raises:
        UserError: when the file or a row cannot be read, or a row names an unknown image, an ambiguous file name or an
            unknown split.
    """
    if file.suffix.lower() not in TABLE_SUFFIXES:
        raise UserError(f"{file} is not a caption list; accepted are files that end in {', '.join(TABLE_SUFFIXES)}")
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
    """Refuse the whole list when a row was skipped, because a missing row would not be noticed."""
    skipped = [problem for problem in problems.found if problem.skipped]
    if skipped:
        named = "; ".join(f"{p.item}: {p.kind}, {p.detail}" for p in skipped[:MAX_LISTED_ROWS])
        more = f"; and {len(skipped) - MAX_LISTED_ROWS} more" if len(skipped) > MAX_LISTED_ROWS else ""
        raise UserError(f"{file} is not added, because some rows cannot be read ({named}{more}); fix or remove them")


def _split_of_row(row: CaptionRow) -> str | None:
    found = Problems()
    split = canonical_split(row.split, row.line, found)
    if found.found:
        raise UserError(f"unknown split '{row.split}'; known: {', '.join(SPLIT_NAMES)}, or leave it empty")
    return split


def _image_ids_by_name(collection: Collection) -> dict[str, str | None]:
    """The image id for each id, file name and path; None for a file name of several images. Ids have priority."""
    ids, paths = collection.column("images", "id"), collection.column("images", "path")
    names: dict[str, str | None] = {}
    for image, path in zip(ids, paths, strict=True):
        if path is not None:
            for name in {str(path), str(collection.folder / str(path)), PurePath(str(path)).name}:
                names[name] = None if name in names else str(image)
    return {**names, **{str(image): str(image) for image in ids}}


def write_caption_list(
    file: Path, rows: Iterable[Sequence[object]], columns: Sequence[str] = ("image", "caption", "path", "why")
) -> None:
    """Write a ``.csv`` that ``read_captions`` accepts when it is filled in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(file) as partial, partial.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(rows)


def refuse_list_with_captions(file: Path) -> None:
    """Check that ``file`` can be overwritten with a caption list without losing captions.

    Raises:
        UserError: when the file holds captions, or is not a caption list.
    """
    if not file.is_file() or not file.stat().st_size:
        return
    problems = Problems()
    try:
        captions = sum(len(row.captions) for row in read_table(file, problems))
    except UserError:
        raise UserError(f"{file} exists and is not a caption list; choose another name, or remove it") from None
    if captions or any(problem.skipped for problem in problems.found):
        held = f"{captions} caption{'s' * (captions != 1)}" if captions else "rows that cannot be read"
        raise UserError(f"{file} holds {held}, which would be lost; choose another name, or remove it")
