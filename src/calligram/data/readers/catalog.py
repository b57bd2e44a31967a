"""The catalogue of import formats, and the import of a data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from calligram.data.collection import Collection
from calligram.data.draft import Problems
from calligram.data.readers.source import DEFAULT_SPLIT_SHARES, DatasetReader, ImportSource, assign_missing_splits
from calligram.data.write_collection import refuse_existing, write_draft
from calligram.data.write_tables import FilePlacement
from calligram.errors import UserError
from calligram.files import refuse_other_encoding, scratch_folder
from calligram.lazy import Catalog
from calligram.progress import Track, silent

R = TypeVar("R", bound=DatasetReader)

READERS: Catalog[DatasetReader] = Catalog(
    {
        "folder": "calligram.data.readers.folder:read_folder",
        "flickr8k": "calligram.data.readers.flickr8k:read_flickr8k",
        "karpathy": "calligram.data.readers.coco:read_karpathy",
        "coco": "calligram.data.readers.coco:read_coco",
        "entities": "calligram.data.readers.entities:read_entities_collection",
        "cuhk-pedes": "calligram.data.readers.cuhk_pedes:read_cuhk_pedes",
        "scan": "calligram.data.readers.scan:read_scan",
        "csv": "calligram.data.readers.folder:read_csv",
        "webdataset": "calligram.data.readers.webdataset:read_webdataset",
        "img2dataset": "calligram.data.readers.webdataset:read_img2dataset",
        "datasets": "calligram.data.readers.hugging_face:read_datasets",
    },
    "calligram.readers",
)
"""function that reads each format"""
NAMED_SOURCES = ("webdataset", "datasets")
"""formats whose source may be a pattern or a hub name, which is no path; their readers say what they miss"""


def reader(name: str) -> Callable[[R], R]:
    """Return a decorator that makes a function the reader of a format, for ``import_collection``.

    The function takes the source and the list of problems, and returns a ``Draft`` of the collection.
    """

    def register(function: R) -> R:
        READERS.register(name, function)
        return function

    return register


def import_collection(
    format: str,
    source: Path,
    dest: Path,
    *,
    images: Path | None = None,
    strict: bool = False,
    placing: FilePlacement = "link",
    overwrite: bool = False,
    split: tuple[float, float, float] | None = DEFAULT_SPLIT_SHARES,
    track: Track = silent,
    report: Callable[[str], None] = lambda line: None,
) -> tuple[Collection, Problems]:
    """Read ``source`` and store it as a collection in ``dest``.

    Args:
        images: folder of the pictures, when it is not one of the usual folders next to the captions.
        strict: raise an error at the first item that would be skipped or repaired.
        split: shares of train, dev and test for a source with captions and without splits; None assigns no splits.
        report: called with lines about captions and regions that were added to a replaced collection.

    Raises:
        UserError: when the format is unknown, the source has another format, or it holds no usable image.
    """
    read = READERS.find(format, "format")
    for path in (source, dest, *([images] if images else [])):
        refuse_other_encoding(path)
    if not source.exists() and format not in NAMED_SOURCES:
        raise UserError(f"{source} does not exist; give the file or folder to import")
    if source.resolve().is_relative_to(dest.resolve()):
        raise UserError(f"the destination {dest} holds the source {source}; choose a destination outside it")
    refuse_existing(dest, overwrite)
    problems = Problems(strict=strict)
    with scratch_folder(dest) as scratch:
        draft = read(ImportSource(source, images, scratch), problems)
        if split is not None:
            assign_missing_splits(draft, split, problems)
        collection = write_draft(
            draft, dest, problems, placing=placing, overwrite=overwrite, track=track, report=report
        )
    return collection, problems
