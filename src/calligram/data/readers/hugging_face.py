"""Hugging Face ``datasets``: read a folder of ``save_to_disk``, a folder that it can load, or a hub name; write one."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calligram.data.collection import Collection
from calligram.data.draft import Draft, PictureFile, Problems
from calligram.data.readers.picture_files import TarShards
from calligram.data.readers.samples import (
    NO_SPLIT,
    RECORD_KEY,
    Sample,
    SampleExport,
    draft_of_samples,
    export_report,
    picture_bytes,
    read_columns,
    samples_by_split,
    write_samples,
)
from calligram.data.readers.source import ImportSource
from calligram.errors import UserError
from calligram.extras import require
from calligram.hub import look_for_hub
from calligram.progress import Track, silent

KEY_COLUMNS = ("id", "image_id", "img_id", "key", "filename", "file_name")
"""columns that name an image, where their values are different in all rows"""
SAVED_FILES = ("state.json", "dataset_dict.json")
"""files of a folder that ``save_to_disk`` wrote"""
ONLY_SPLIT = "train"
"""name that ``datasets`` gives to data without splits"""
HUB_SPLITS = {"dev": "validation"}
"""names of splits that other programs expect"""
WRITE_BATCH_ROWS = 64
"""rows of a batch in memory; pictures of a phone take 5 MB each"""


def read_datasets(source: ImportSource, problems: Problems) -> Draft:
    """Read all splits. The pictures are in the column of images; the captions in ``caption``, ``text`` or ``captions``.

    Other columns are metadata. If there is only one split, named train, it counts as no split.
    """
    library = require("datasets", extra="datasets", purpose="a data set of Hugging Face")
    assert source.scratch is not None
    splits = _load(library, source.path, source.scratch / "cache")
    with TarShards(source.scratch, "pictures") as shards:
        samples = [
            sample for split, table in splits.items() for sample in _samples(library, split, table, shards, problems)
        ]
    for sample in samples:
        if sample.split is None and sample.group != NO_SPLIT and list(splits) != [ONLY_SPLIT]:
            sample.split = sample.group
    draft = draft_of_samples(source.path.name or str(source.path), samples, problems)
    draft.reader_arrays = frozenset(shards.files)
    draft.about["source"] = "Hugging Face datasets"
    return draft


def _load(library: Any, source: Path, cache: Path) -> Mapping[str, Any]:
    """The tables of a data set by split, with pictures that are not decoded."""
    name = source.as_posix()
    try:
        with _quiet(library):
            if source.is_dir() and any((source / file).is_file() for file in SAVED_FILES):
                loaded = library.load_from_disk(name)
            elif source.is_dir():
                loaded = library.load_dataset(str(source.resolve()), cache_dir=str(cache))
            else:
                loaded = _load_from_hub(library, name)
    except Exception as error:  # the library raises many types, also for a folder that it does not understand
        if isinstance(error, UserError):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"no data set could be loaded from '{name}' ({reason}); give a folder of save_to_disk, a folder of "
            "pictures with metadata.csv, a folder of Parquet files, or a hub name"
        ) from error
    return loaded if isinstance(loaded, dict) else {str(loaded.split or ONLY_SPLIT): loaded}


def _load_from_hub(library: Any, name: str) -> Any:
    from huggingface_hub import constants

    look_for_hub(name)
    library.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE
    return library.load_dataset(name)


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Without progress bars and without the lines of the library's log."""
    bars, log = library.are_progress_bars_disabled(), logging.getLogger("datasets")
    level = log.level
    library.disable_progress_bars()
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
        if not bars:
            library.enable_progress_bars()


def _samples(library: Any, split: str, table: Any, shards: TarShards, problems: Problems) -> Iterator[Sample]:
    pictures = [name for name, kind in table.features.items() if isinstance(kind, library.Image)]
    if not pictures:
        raise UserError(
            f"split {split} has the columns {', '.join(table.column_names)}, and none of them holds images; "
            "cast one to datasets.Image first"
        )
    for other in pictures[1:]:
        problems.note("second column of images: not read", f"{split}/{other}")
    plain = table.cast_column(pictures[0], library.Image(decode=False)).remove_columns(pictures[1:])
    key_column = _key_column(plain)
    classes = {name: kind for name, kind in plain.features.items() if isinstance(kind, library.ClassLabel)}
    for number, row in enumerate(plain):
        picture = row.pop(pictures[0])
        key = str(row.pop(key_column)) if key_column else f"{number:09d}"
        at = _placed(picture, f"{split}/{number:09d}", shards)
        if at is None:
            problems.skip("sample without a picture", f"{split}/{key}", f"column {pictures[0]} is empty")
            continue
        for name, kind in classes.items():
            row[name] = kind.int2str(row[name]) if row[name] is not None and row[name] >= 0 else None
        sample = Sample(key, split, at)
        read_columns(sample, row, problems)
        yield sample


def _key_column(table: Any) -> str | None:
    """The first column that names images, and each by another name."""
    for name in KEY_COLUMNS:
        if name in table.column_names:
            values = table[name][:]
            if None not in values and len({str(value) for value in values}) == len(values):
                return name
    return None


def _placed(picture: Mapping[str, Any] | None, name: str, shards: TarShards) -> Any:
    """The picture's own file, or a member of a tar with its bytes; None without a picture."""
    if picture is None:
        return None
    path = picture.get("path") or ""
    if picture.get("bytes"):
        suffix = Path(path).suffix.lower()
        return shards.add({name + suffix: picture["bytes"]})[0]
    return PictureFile(Path(path)) if path and Path(path).is_file() else None


def export_datasets(collection: Collection, target: Path, *, track: Track = silent) -> SampleExport:
    """Write a folder for ``datasets.load_from_disk``: columns ``id``, ``image``, ``captions`` and the record.

    Raises:
        UserError: when the target exists, no image has a picture, or ``datasets`` is not installed.
    """
    library = require("datasets", extra="datasets", purpose="an export for Hugging Face datasets")
    kinds = {"id": library.Value("string"), "image": library.Image(decode=False)}
    features = library.Features(
        {**kinds, "captions": library.List(library.Value("string")), RECORD_KEY: library.Value("string")}
    )

    def write(folder: Path) -> SampleExport:
        problems: list[tuple[str, str]] = []
        tables = {}
        for split, chosen in samples_by_split(collection).items():
            with library.arrow_writer.ArrowWriter(
                path=str(folder.parent / f"{split}.arrow"), features=features, writer_batch_size=WRITE_BATCH_ROWS
            ) as writer:
                for image in track(chosen, f"writing {split}", len(chosen)):
                    if (data := picture_bytes(collection, image, problems)) is not None:
                        picture = {"bytes": data, "path": f"{image.row:09d}{image.suffix}"}
                        about = json.dumps(image.record, ensure_ascii=False)
                        writer.write(
                            {"id": image.record["id"], "image": picture, "captions": image.captions, RECORD_KEY: about}
                        )
                if writer.finalize()[0]:
                    table = library.Dataset.from_file(str(folder.parent / f"{split}.arrow"))
                    tables[HUB_SPLITS.get(split, split)] = table.cast_column("image", library.Image())
        bars = library.are_progress_bars_disabled()
        library.disable_progress_bars()
        try:
            library.DatasetDict(tables).save_to_disk(str(folder))
        finally:
            if not bars:
                library.enable_progress_bars()
        return export_report(collection, sum(len(table) for table in tables.values()), problems)

    return write_samples(collection, target, write)
