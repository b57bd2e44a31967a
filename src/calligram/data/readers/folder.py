"""Reader of a folder of pictures, with captions in one ``.txt`` file per picture or in one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PictureFile, Problems
from calligram.data.readers.captions_table import (
    TABLE_SUFFIXES,
    CaptionRow,
    MatchedRow,
    add_metadata,
    identity_numbers,
    read_table,
)
from calligram.data.readers.picture_files import PictureIndex, is_picture
from calligram.data.readers.source import SPLIT_NAMES, ImportSource, canonical_split, first_split_of_each
from calligram.data.readers.text_files import read_lines
from calligram.errors import UserError
from calligram.text import printable

PREFERRED_TABLE_NAMES = ("captions", "metadata")
"""names that a caption table usually has, for a folder with several tables"""
MAX_SIDECAR_BYTES = 10_000_000
"""larger files are not captions of one picture"""


def read_folder(source: ImportSource, problems: Problems) -> Draft:
    """Read every picture under a folder; the id of a picture is its relative path.

    Captions come from ``photo.txt`` or ``photo.jpg.txt`` (one per line), and from one table at the top of the folder.
    Its columns ``split`` and ``identity`` are used; all other columns become metadata. If the table has no splits and
    all top folders have names of splits (``train``, ``val``, ...), the folders give the splits.
    """
    table = _table(source)
    found = PictureIndex(source.images or source.folder, problems)
    if not len(found):
        raise UserError(f"no pictures found in {found.root}; give their folder with --images FOLDER")
    rows = list(_sidecars(found, table, problems))
    rows += read_table(table, problems) if table else []
    draft = Draft(source.folder.resolve().name)
    for name, path in found.paths.items():
        if _is_text(name):
            draft.images.append(ImageRecord(name, PictureFile(path)))
        else:
            problems.skip("file name is not UTF-8", ascii(name), "rename it")
    _add_rows(draft, rows, found, problems)
    if not any(record.split for record in draft.images):
        _splits_from_folders(draft)
    return draft


def read_csv(source: ImportSource, problems: Problems) -> Draft:
    """Read a table as programs for CLIP read it: only the pictures that it names, at any path.

    Paths are absolute, or relative to ``--images`` or to the folder of the table. The separator may be a comma, a
    semicolon or a tab.

    Raises:
        UserError: when the source is not a table.
    """
    if source.path.is_dir():
        raise UserError(
            f"{source.path} is a folder and no table; give the table, or use the format 'folder' for all its pictures"
        )
    table = _table(source)
    assert table is not None
    rows = read_table(table, problems)
    found = _NamedPictures(source.images or source.folder)
    draft = Draft(table.stem)
    for name in dict.fromkeys(row.image for row in rows):
        path = found.find(name)
        if path is not None and path not in found.paths:
            found.paths[path] = name
            draft.images.append(ImageRecord(name, PictureFile(path)))
    _add_rows(draft, rows, found, problems)
    return draft


class _NamedPictures:
    """Pictures by their path in a table, absolute or relative to ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths: dict[Path, str] = {}

    def find(self, name: str) -> Path | None:
        path = self.root / name.replace("\\", "/")
        return path if path.is_file() else None


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def captions_tables(folder: Path) -> list[Path]:
    """Tables of a folder that may hold captions; of several, the one with a preferred name."""
    tables = sorted(p for p in folder.iterdir() if p.suffix.lower() in TABLE_SUFFIXES and not p.name.startswith("."))
    for name in PREFERRED_TABLE_NAMES:
        tables = [p for p in tables if p.stem.lower() == name] or tables
    return tables


def _table(source: ImportSource) -> Path | None:
    """The caption table, if there is one."""
    if source.path.is_file():
        if source.path.suffix.lower() not in TABLE_SUFFIXES:
            raise UserError(
                f"{source.path} is not a table of captions; give a folder or a {', '.join(TABLE_SUFFIXES)} file"
            )
        return source.path
    tables = captions_tables(source.path)
    if len(tables) > 1:
        raise UserError(
            f"{source.path} holds {', '.join(p.name for p in tables)}; give the one with the captions as the source"
        )
    return tables[0] if tables else None


def _sidecars(found: PictureIndex, table: Path | None, problems: Problems) -> Iterator[CaptionRow]:
    """Captions in ``.txt`` files with the name of a picture. Other files in the folder are reported."""
    sidecars = {path.with_suffix(".txt"): name for name, path in reversed(found.paths.items())}
    sidecars |= {path.with_name(path.name + ".txt"): name for name, path in found.paths.items()}
    _report_shared(found, sidecars, problems)
    other_files: dict[str, list[Path]] = {}
    for path in found.files:
        if path in sidecars:
            name = printable(path.relative_to(found.root).as_posix())
            try:
                texts = read_lines(path, problems, MAX_SIDECAR_BYTES)
            except UserError as error:
                problems.skip("unreadable caption file", name, printable(str(error)))
                continue
            if not texts:
                problems.note("empty caption file", name)
            yield CaptionRow(name, sidecars[path], texts)
        elif not is_picture(path) and path != table:
            other_files.setdefault(path.suffix.lower(), []).append(path)
    for suffix, paths in other_files.items():
        for path in paths:
            name = ascii(path.relative_to(found.root).as_posix()).strip("'")
            problems.note(f"{suffix or 'other'} files without a picture: not read", name)


def _report_shared(found: PictureIndex, sidecars: dict[Path, str], problems: Problems) -> None:
    """Report pictures without captions whose ``.txt`` is used for another picture with the same stem."""
    for name, path in found.paths.items():
        sidecar = path.with_suffix(".txt")
        if sidecars[sidecar] != name and sidecar.is_file() and not path.with_name(path.name + ".txt").is_file():
            detail = (
                f"{sidecar.name} is used for {sidecars[sidecar]}; rename it to {path.name}.txt if it is for this one"
            )
            problems.repair("caption file of two pictures", ascii(name).strip("'"), detail)


def _add_rows(
    draft: Draft, rows: Sequence[CaptionRow], found: PictureIndex | _NamedPictures, problems: Problems
) -> None:
    """Add captions, splits, identities and metadata of all rows to their images."""
    by_path = {record.picture.path: record for record in draft.images if isinstance(record.picture, PictureFile)}
    numbers = identity_numbers([row.identity for row in rows if row.identity is not None])
    seen: dict[str, set[str]] = {record.id: set() for record in draft.images}
    described: list[MatchedRow] = []
    given: list[tuple[str, str]] = []
    for row in rows:
        path = found.find(row.image)
        image = by_path.get(path) if path else None
        if image is None:
            problems.skip("row without its picture", row.line, f"{row.image} is not in {found.root}")
            continue
        if split := canonical_split(row.split, row.line, problems):
            given.append((image.id, split))
        if row.identity is not None:
            image.identity = numbers[row.identity]
        known = seen[image.id]
        one = MatchedRow(image, row.line, metadata=row.metadata)
        for text in row.captions:
            if text in known:
                problems.skip("caption given twice", row.line, f"of {image.id}: {text[:60]}")
                continue
            one.captions.append(CaptionRecord(f"{image.id}#{len(known)}", text, (image.id,)))
            known.add(text)
        draft.captions += one.captions
        described.append(one)
    add_metadata(described, problems)
    splits = first_split_of_each(given, problems)
    for record in draft.images:
        record.split = splits.get(record.id)


def _splits_from_folders(draft: Draft) -> None:
    tops = {PurePosixPath(record.id).parts[0].lower() for record in draft.images if "/" in record.id}
    if len(tops) > 1 and tops <= SPLIT_NAMES.keys() and all("/" in record.id for record in draft.images):
        for record in draft.images:
            record.split = SPLIT_NAMES[PurePosixPath(record.id).parts[0].lower()]
        draft.about["splits"] = "by the top folder"
