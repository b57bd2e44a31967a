"""Reader of folders that img2dataset wrote, in each of its layouts: tars, Parquet files with pictures, or files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from calligram.data.draft import Draft, PictureFile, Problems
from calligram.data.readers.picture_files import PictureIndex
from calligram.data.readers.samples import Sample, draft_of_samples, named_split, read_columns
from calligram.data.readers.source import ImportSource
from calligram.data.readers.text_files import read_text
from calligram.data.readers.webdataset import add_json_columns, join_captions, tar_samples
from calligram.data.tar_shards import TarShards
from calligram.errors import UserError

PICTURE_COLUMNS = ("jpg", "png", "webp")
"""columns of a Parquet file with the bytes of the pictures, by encoding"""
UNUSED_COLUMNS = ("key", "status", "error_message", "width", "height")
"""entries about the download, and the size, which is measured at import"""
DOWNLOADED = "success"
READ_BATCH_ROWS = 256


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
            add_json_columns(sample, read_text(path.with_suffix(".json"), problems), problems)
        if path.with_suffix(".txt").is_file():
            join_captions(sample, [read_text(path.with_suffix(".txt"), problems)])
        sample.split = sample.split or named_split(name.split("/")[:-1])
        yield sample


def _report_failures(table: Path, problems: Problems) -> None:
    names = _opened(table).schema_arrow.names
    wanted = [name for name in ("key", "url", "status", "error_message") if name in names]
    for number, row in enumerate(_rows(table, wanted)) if "status" in wanted else ():
        if row["status"] != DOWNLOADED:
            item = f"{table.stem}/{row.get('key') or number}"
            problems.skip("not downloaded", item, f"{row.get('url')}: {row.get('error_message')}")
