"""Reader of WebDataset tars: files with the same name up to the first dot are one sample, such as 0001.jpg, 0001.txt.

The pictures stay in their tars and are read at their offsets, so nothing is unpacked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path, PurePosixPath

from calligram.data.draft import Draft, Problems, TarMember
from calligram.data.pictures import PICTURE_SUFFIXES
from calligram.data.readers.picture_files import tar_members
from calligram.data.readers.samples import Sample, draft_of_samples, named_split, read_columns
from calligram.data.readers.source import ImportSource
from calligram.data.readers.text_files import decode_text, read_lines
from calligram.errors import UserError
from calligram.files import read_regular

TAR_SUFFIX, COLUMNS_SUFFIX = ".tar", ".json"
TEXT_SUFFIXES = (".txt", ".text", ".caption")
MAX_TEXT_MEMBER_BYTES = 10_000_000
"""longer texts of one sample are not captions"""
NUMBER_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def read_webdataset(source: ImportSource, problems: Problems) -> Draft:
    """Read all shards of a folder, one ``.tar``, a range ``data-{0000..0012}.tar``, or a text file with a path a line.

    Captions come from ``.txt`` (one per line) and from ``caption``, ``text`` or ``captions`` in ``.json``, whose other
    entries are metadata. The split comes from the ``.json``, or from the name of the tar or its folder
    (``train-0001.tar``).
    """
    shards = shard_files(source.path, problems)
    samples = [sample for shard in shards for sample in tar_samples(shard, problems)]
    draft = draft_of_samples(_data_set_name(source.path), samples, problems)
    draft.about["source"] = "WebDataset tars"
    return draft


def shard_files(source: Path, problems: Problems) -> list[Path]:
    """The tars that a source names.

    Raises:
        UserError: when there are none, or one does not exist.
    """
    if source.is_dir():
        found = sorted(path for path in source.rglob(f"*{TAR_SUFFIX}") if not path.name.startswith("."))
        if not found:
            raise UserError(f"no {TAR_SUFFIX} files in {source}; give the folder of the shards, or one of them")
        return found
    if match := NUMBER_RANGE.search(str(source)):
        first, last = match.groups()
        numbers = (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
        found = [Path(NUMBER_RANGE.sub(number, str(source), count=1)) for number in numbers]
    elif source.suffix.lower() == ".txt" and source.is_file():
        found = [source.parent / line for line in read_lines(source, problems)]
    else:
        found = [source]
    missing = [path for path in found if not path.is_file()]
    if missing or not found:
        named = missing[0] if missing else source
        raise UserError(
            f"{named} does not exist or lists nothing; give a folder with {TAR_SUFFIX} files, one of them, a range "
            "such as data-{0000..0012}.tar, or a .txt file with one path a line"
        )
    return found


def _data_set_name(source: Path) -> str:
    return source.resolve().name if source.is_dir() else NUMBER_RANGE.sub("", source.name).split(".")[0].rstrip("-_")


def tar_samples(tar: Path, problems: Problems) -> Iterator[Sample]:
    """The samples of one tar that have a picture; others are skipped and reported."""
    split = named_split((tar.name, tar.parent.name))
    # Like the other readers of this format: the files of a sample follow each other.
    for key, members in groupby(tar_members(tar, problems), key=lambda member: _name_parts(member)[0]):
        sample = _sample(tar, key, list(members), problems)
        if sample is not None:
            sample.split = sample.split or split
            yield sample


def _name_parts(member: TarMember) -> tuple[str, str]:
    """The key of a member (its path up to the first dot of the file name), and the rest with the dot."""
    path = PurePosixPath(member.name)
    stem, dot, suffix = path.name.partition(".")
    return str(path.parent / stem), (dot + suffix).lower()


def _sample(tar: Path, key: str, members: list[TarMember], problems: Problems) -> Sample | None:
    item = f"{tar.stem}/{key}"
    pictures = [member for member in members if _name_parts(member)[1] in PICTURE_SUFFIXES]
    if not pictures:
        names = ", ".join(_name_parts(member)[1] or "no suffix" for member in members)
        problems.skip("sample without a picture", item, f"it has {names}")
        return None
    for other in pictures[1:]:
        problems.note("second picture of a sample: not read", f"{tar.stem}/{other.name}")
    sample = Sample(key, tar.stem, pictures[0])
    lines: list[str] = []
    for member in members:
        suffix = _name_parts(member)[1]
        if suffix == COLUMNS_SUFFIX:
            _add_json(sample, member, problems)
        elif suffix in TEXT_SUFFIXES:
            lines.append(_member_text(member, problems) or "")
    join_captions(sample, lines)
    return sample


def join_captions(sample: Sample, texts: Iterable[str]) -> None:
    """Add captions of text files, one per line, to those of the ``.json``, which often repeats them."""
    known = set(sample.captions)
    lines = [line.strip() for text in texts if text.strip() not in known for line in text.split("\n")]
    sample.captions = list(dict.fromkeys([*(line for line in lines if line), *sample.captions]))


def _add_json(sample: Sample, member: TarMember, problems: Problems) -> None:
    text = _member_text(member, problems)
    if text is not None:
        add_json_columns(sample, text, problems)


def add_json_columns(sample: Sample, text: str, problems: Problems) -> None:
    """Add the entries of a sample's ``.json``: an object, or a list of captions."""
    try:
        columns = json.loads(text)
    except (ValueError, RecursionError) as error:
        problems.skip("unreadable .json of a sample", sample.item, str(error))
        return
    if isinstance(columns, list):
        columns = {"captions": columns}
    if isinstance(columns, dict):
        read_columns(sample, columns, problems)
    else:
        problems.skip("unreadable .json of a sample", sample.item, f"{type(columns).__name__}, not an object")


def _member_text(member: TarMember, problems: Problems) -> str | None:
    """The text of a member; None where it cannot be read, which is reported."""
    try:
        data = read_regular(member.tar, MAX_TEXT_MEMBER_BYTES, member.offset, member.size)
    except OSError as error:
        problems.skip("unreadable text of a sample", f"{member.tar.stem}/{member.name}", str(error.strerror))
        return None
    return decode_text(data, f"{member.tar.stem}/{member.name}", problems)
