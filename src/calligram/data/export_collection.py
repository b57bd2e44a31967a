"""Export a collection to formats of other programs: WebDataset tars, or a folder for Hugging Face ``datasets``.

Pictures keep their bytes. Each sample has the first captions in the usual places, and a record with everything that
``calligram import`` needs to restore ids, splits, identities, metadata, and captions of several images.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from calligram.data.collection import Collection
from calligram.data.draft import MetadataValue
from calligram.data.pictures import PICTURE_SUFFIXES, PictureError
from calligram.data.readers.hugging_face import NO_SPLIT
from calligram.data.readers.samples import RECORD_KEY
from calligram.data.tar_shards import SHARD_BYTES, TarShards
from calligram.errors import UserError
from calligram.extras import require
from calligram.files import NEW_FOLDER, check_space, move_folder, scratch_folder
from calligram.progress import Track, silent

NOT_EXPORTED = ("regions", "phrases", "also_true")
"""tables that have no place in the other formats"""
HUB_SPLITS = {"dev": "validation"}
"""names of splits that other programs expect"""


class ExportReport(NamedTuple):
    """What was written, and what was left out."""

    images: int
    captions: int
    problems: list[tuple[str, str]]
    """id of each image without a readable picture, and why"""
    left_out: list[str]
    """tables of the collection that the format has no place for"""


class _ExportedImage(NamedTuple):
    row: int
    split: str
    suffix: str
    record: dict[str, Any]

    @property
    def captions(self) -> list[str]:
        return [caption["text"] for caption in self.record["captions"]]


def export_webdataset(
    collection: Collection, target: Path, *, shard_bytes: int = SHARD_BYTES, track: Track = silent
) -> ExportReport:
    """Write WebDataset tars ``SPLIT-000000.tar`` with a picture, a ``.txt`` and a ``.json`` for each image.

    The ``.txt`` holds one caption per line. Equal collections give equal bytes.

    Raises:
        UserError: when the target exists, or no image has a picture.
    """

    def write(folder: Path) -> ExportReport:
        problems: list[tuple[str, str]] = []
        images = 0
        for split, chosen in _by_split(collection).items():
            with TarShards(folder, split, shard_bytes) as shards:
                for image in track(chosen, f"writing {split}", len(chosen)):
                    if (data := _picture(collection, image, problems)) is None:
                        continue
                    # A key has no dots, which end it, and is the same in all runs.
                    key, texts = f"{image.row:09d}", [" ".join(text.split("\n")) for text in image.captions]
                    about = {"captions": image.captions, "split": image.record["split"], RECORD_KEY: image.record}
                    files = {f"{key}{image.suffix}": data, f"{key}.txt": "\n".join(texts).encode()}
                    shards.add(files | {f"{key}.json": json.dumps(about, ensure_ascii=False).encode()})
                    images += 1
        return _report(collection, images, problems)

    return _write_folder(collection, target, write)


def export_datasets(collection: Collection, target: Path, *, track: Track = silent) -> ExportReport:
    """Write a folder for ``datasets.load_from_disk``: columns ``id``, ``image``, ``captions`` and the record.

    Raises:
        UserError: when the target exists, no image has a picture, or ``datasets`` is not installed.
    """
    library = require("datasets", extra="datasets", purpose="an export for Hugging Face datasets")
    kinds = {"id": library.Value("string"), "image": library.Image(decode=False)}
    features = library.Features(
        {**kinds, "captions": library.List(library.Value("string")), RECORD_KEY: library.Value("string")}
    )

    def write(folder: Path) -> ExportReport:
        problems: list[tuple[str, str]] = []
        tables = {}
        for split, chosen in _by_split(collection).items():
            with library.arrow_writer.ArrowWriter(
                path=str(folder.parent / f"{split}.arrow"), features=features, writer_batch_size=WRITE_BATCH_ROWS
            ) as writer:
                for image in track(chosen, f"writing {split}", len(chosen)):
                    if (data := _picture(collection, image, problems)) is not None:
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
        return _report(collection, sum(len(table) for table in tables.values()), problems)

    return _write_folder(collection, target, write)


WRITE_BATCH_ROWS = 64
"""rows of a batch in memory; pictures of a phone take 5 MB each"""


def _write_folder(collection: Collection, target: Path, write: Callable[[Path], ExportReport]) -> ExportReport:
    """Call ``write`` with a new folder, and rename it to the target when it is complete."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists; give the name of a new folder")
    with scratch_folder(target) as scratch:
        folder = scratch / NEW_FOLDER
        folder.mkdir()
        check_space(folder, int(collection.numbers("images", "bytes").sum()))
        report = write(folder)
        if not report.images:
            why = f"; the first: {report.problems[0][1]}" if report.problems else ""
            raise UserError(f"no image of {collection.folder} has a picture, so there is nothing to export{why}")
        if target.exists():
            target.rmdir()
        move_folder(folder, target)
    return report


def _report(collection: Collection, images: int, problems: list[tuple[str, str]]) -> ExportReport:
    left_out = [name for name in NOT_EXPORTED if collection.has(name)] + ["features"] * bool(collection.features)
    return ExportReport(images, len(collection.table("captions")), problems, left_out)


def _by_split(collection: Collection) -> Mapping[str, list[_ExportedImage]]:
    """The images of each split; ``NO_SPLIT`` names those that have none."""
    found: dict[str, list[_ExportedImage]] = {}
    for image in _exported_images(collection):
        found.setdefault(image.split or NO_SPLIT, []).append(image)
    return found


def _exported_images(collection: Collection) -> Iterator[_ExportedImage]:
    columns = {name: collection.column("images", name) for name in ("id", "split", "identity", "path")}
    metadata = {name: collection.column("images", name) for name in collection.metadata_columns}
    captions = _captions_of_images(collection)
    for row, (name, split, identity, path) in enumerate(zip(*columns.values(), strict=True)):
        suffix = Path(str(path)).suffix.lower()
        record = {
            **{"id": name, "split": split, "identity": identity},
            "metadata": _given(metadata, row),
            "captions": captions.get(row, []),
        }
        yield _ExportedImage(row, str(split or ""), suffix if suffix in PICTURE_SUFFIXES else ".jpg", record)


def _captions_of_images(collection: Collection) -> dict[int, list[dict[str, Any]]]:
    ids, texts = collection.column("captions", "id"), collection.column("captions", "text")
    metadata = {name: collection.column("captions", name) for name in collection.caption_metadata_columns}
    found: dict[int, list[dict[str, Any]]] = {}
    pairs = zip(collection.numbers("matches", "image"), collection.numbers("matches", "caption"), strict=True)
    for image, caption in pairs:
        one = {"id": ids[caption], "text": texts[caption]}
        more = _given(metadata, int(caption))
        found.setdefault(int(image), []).append({**one, "metadata": more} if more else one)
    return found


def _given(columns: Mapping[str, list[MetadataValue]], row: int) -> dict[str, MetadataValue]:
    return {name: values[row] for name, values in columns.items() if values[row] is not None}


def _picture(collection: Collection, image: _ExportedImage, problems: list[tuple[str, str]]) -> bytes | None:
    try:
        return collection.pictures.read(image.row)
    except PictureError as error:
        problems.append((str(image.record["id"]), str(error)))
        return None
