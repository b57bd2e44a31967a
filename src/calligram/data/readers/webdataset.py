"""WebDataset tars, read and written, and folders that img2dataset wrote in each of its layouts.

In a tar, files with the same name up to the first dot are one sample, such as 0001.jpg and 0001.txt. The pictures stay
in their tars and are read at their offsets, so nothing is unpacked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from calligram.data.collection import Collection
from calligram.data.draft import Draft, PictureFile, Problems, TarMember
from calligram.data.readers.picture_files import SHARD_BYTES, PictureIndex, TarShards, tar_members
from calligram.data.readers.samples import (
    RECORD_KEY,
    Sample,
    SampleExport,
    draft_of_samples,
    export_report,
    named_split,
    picture_bytes,
    read_columns,
    samples_by_split,
    write_samples,
)
from calligram.data.readers.source import ImportSource
from calligram.data.readers.text_files import decode_text, read_lines, read_text
from calligram.errors import UserError
from calligram.files import read_regular
from calligram.picture_formats import PICTURE_SUFFIXES
from calligram.progress import Track, silent

TAR_SUFFIX, COLUMNS_SUFFIX = ".tar", ".json"
TEXT_SUFFIXES = (".txt", ".text", ".caption")
MAX_TEXT_MEMBER_BYTES = 10_000_000
"""longer texts of one sample are not captions"""
NUMBER_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
PICTURE_COLUMNS = ("jpg", "png", "webp")
"""columns of a Parquet file with the bytes of the pictures, by encoding"""
UNUSED_COLUMNS = ("key", "status", "error_message", "width", "height")
"""entries about the download, and the size, which is measured at import"""
DOWNLOADED = "success"
READ_BATCH_ROWS = 256


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
    _join_captions(sample, lines)
    return sample


def _join_captions(sample: Sample, texts: Iterable[str]) -> None:
    """Add captions of text files, one per line, to those of the ``.json``, which often repeats them."""
    known = set(sample.captions)
    lines = [line.strip() for text in texts if text.strip() not in known for line in text.split("\n")]
    sample.captions = list(dict.fromkeys([*(line for line in lines if line), *sample.captions]))


def _add_json(sample: Sample, member: TarMember, problems: Problems) -> None:
    text = _member_text(member, problems)
    if text is not None:
        _add_json_columns(sample, text, problems)


def _add_json_columns(sample: Sample, text: str, problems: Problems) -> None:
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


def read_img2dataset(source: ImportSource, problems: Problems) -> Draft:
    """Read the shards of a folder. Links that could not be downloaded are listed as problems."""
    folder = source.path
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the output folder of img2dataset")
    tars, tables = sorted(folder.rglob("*.tar")), sorted(folder.rglob("*.parquet"))
    shards = None
    if tars:
        samples = [sample for tar in tars for sample in tar_samples(tar, problems)]
    elif any(_picture_column(table) for table in tables):
        assert source.scratch is not None
        with TarShards(source.scratch, "pictures") as shards:
            samples = [one for table in tables for one in _parquet_samples(table, shards, problems)]
    else:
        samples = list(_file_samples(folder, problems))
    for table in tables:
        _report_failures(table, problems)
    for sample in samples:
        sample.metadata = {name: value for name, value in sample.metadata.items() if name not in UNUSED_COLUMNS}
    draft = draft_of_samples(folder.resolve().name, samples, problems)
    draft.reader_arrays = frozenset(shards.files if shards else ())
    draft.about["source"] = "img2dataset"
    return draft


def _opened(table: Path) -> Any:
    try:
        return pq.ParquetFile(table)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{table} is not a whole Parquet file ({error}); remove it, or download it again") from error


def _picture_column(table: Path) -> str | None:
    names = _opened(table).schema_arrow.names
    return next((name for name in PICTURE_COLUMNS if name in names), None)


def _parquet_samples(table: Path, shards: TarShards, problems: Problems) -> Iterator[Sample]:
    """Rows with a picture, whose bytes are moved to a tar."""
    column = _picture_column(table)
    split = named_split((table.name, table.parent.name))
    for number, row in enumerate(_rows(table)):
        data = row.pop(column, None) if column else None
        if row.get("status", DOWNLOADED) != DOWNLOADED:
            continue  # listed with all links that failed
        key = str(row.get("key") or f"{number:09d}")
        if not data:
            problems.skip("sample without a picture", f"{table.stem}/{key}", f"no bytes in column {column}")
            continue
        (member,) = shards.add({f"{table.stem}/{key}.{column}": data})
        sample = Sample(key, table.stem, member)
        read_columns(sample, row, problems)
        sample.split = sample.split or split
        yield sample


def _rows(table: Path, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    try:
        for batch in _opened(table).iter_batches(READ_BATCH_ROWS, columns=columns):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{table} is damaged ({error}); download it again") from error


def _file_samples(folder: Path, problems: Problems) -> Iterator[Sample]:
    """Pictures with a ``.txt`` and a ``.json`` of the same name."""
    for name, path in PictureIndex(folder, problems).paths.items():
        sample = Sample(path.stem, path.parent.name, PictureFile(path))
        if path.with_suffix(".json").is_file():
            _add_json_columns(sample, read_text(path.with_suffix(".json"), problems), problems)
        if path.with_suffix(".txt").is_file():
            _join_captions(sample, [read_text(path.with_suffix(".txt"), problems)])
        sample.split = sample.split or named_split(name.split("/")[:-1])
        yield sample


def _report_failures(table: Path, problems: Problems) -> None:
    names = _opened(table).schema_arrow.names
    wanted = [name for name in ("key", "url", "status", "error_message") if name in names]
    for number, row in enumerate(_rows(table, wanted)) if "status" in wanted else ():
        if row["status"] != DOWNLOADED:
            item = f"{table.stem}/{row.get('key') or number}"
            problems.skip("not downloaded", item, f"{row.get('url')}: {row.get('error_message')}")


def export_webdataset(
    collection: Collection, target: Path, *, shard_bytes: int = SHARD_BYTES, track: Track = silent
) -> SampleExport:
    """Write WebDataset tars ``SPLIT-000000.tar`` with a picture, a ``.txt`` and a ``.json`` for each image.

    The ``.txt`` holds one caption per line. Equal collections give equal bytes.

    Raises:
        UserError: when the target exists, or no image has a picture.
    """

    def write(folder: Path) -> SampleExport:
        problems: list[tuple[str, str]] = []
        images = 0
        for split, chosen in samples_by_split(collection).items():
            with TarShards(folder, split, shard_bytes) as shards:
                for image in track(chosen, f"writing {split}", len(chosen)):
                    if (data := picture_bytes(collection, image, problems)) is None:
                        continue
                    # A key has no dots, which end it, and is the same in all runs.
                    key, texts = f"{image.row:09d}", [" ".join(text.split("\n")) for text in image.captions]
                    about = {"captions": image.captions, "split": image.record["split"], RECORD_KEY: image.record}
                    files = {f"{key}{image.suffix}": data, f"{key}.txt": "\n".join(texts).encode()}
                    shards.add(files | {f"{key}.json": json.dumps(about, ensure_ascii=False).encode()})
                    images += 1
        return export_report(collection, images, problems)

    return write_samples(collection, target, write)
