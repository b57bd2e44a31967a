"""Samples of other data sets: a picture with its texts and columns, as one row of a table or one key of a tar.

An export of a collection adds a record to each sample, ``RECORD_SCHEMA``, from which an import restores ids, splits,
identities, metadata, and captions of several images.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from calligram.data.collection import Collection
from calligram.data.draft import CaptionRecord, Draft, ImageRecord, MetadataValue, PictureFile, Problems, TarMember
from calligram.data.pictures import PictureError
from calligram.data.readers.captions_table import (
    CAPTION_COLUMN_NAMES,
    CLIP_CAPTION_COLUMN,
    CLIP_IMAGE_COLUMN,
    IDENTITY,
    SPLIT,
    MatchedRow,
    add_metadata,
    identity_numbers,
)
from calligram.data.readers.source import SPLIT_NAMES, canonical_split
from calligram.errors import UserError
from calligram.files import NEW_FOLDER, check_space, move_folder, scratch_folder
from calligram.picture_formats import PICTURE_SUFFIXES
from calligram.progress import Track, silent
from calligram.records import integer, list_of, map_of, optional, record, text

RECORD_KEY = "calligram"
"""key of a sample under which the export keeps what other programs have no place for"""
NO_SPLIT = "unassigned"
"""name that the export gives to images without a split"""
CSV_FILE = "pairs.csv"
"""table of an export for programs that read CLIP's kind"""
NOT_EXPORTED = ("regions", "phrases", "also_true")
"""tables that have no place in the other formats"""


def _plain_value(value: Any, where: str) -> None:
    """Texts, numbers, true, false and null."""
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError(f"{where} must be a text, a number, true, false or null, got {type(value).__name__}")


RECORD_SCHEMA = record(
    {
        **{"id": text(), "split": optional(text()), "identity": optional(integer())},
        "metadata": map_of(_plain_value),
        "captions": list_of(record({"id": text(), "text": text()}, {"metadata": map_of(_plain_value)})),
    }
)
"""of the record that ``calligram export`` adds to a sample"""


@dataclass
class Sample:
    """A picture, its captions and the other columns of one sample."""

    key: str
    """name of the image in its shard, folder or table"""
    group: str
    """shard, folder or split of the sample: together with the key it is unique"""
    picture: PictureFile | TarMember
    captions: list[str] = field(default_factory=list)
    split: str | None = None
    identity: str | None = None
    metadata: dict[str, MetadataValue] = field(default_factory=dict)
    exported: Mapping[str, Any] | None = None
    """the record of ``calligram export``, if the sample has one"""

    @property
    def item(self) -> str:
        """Name for the list of problems."""
        return f"{self.group}/{self.key}"


def read_columns(sample: Sample, columns: Mapping[str, object], problems: Problems) -> None:
    """Take captions, split, identity, metadata and the record of an export from the columns of a sample."""
    names = {str(name).strip().lower(): name for name in columns}
    sample.exported = _exported_record(sample.item, columns.get(RECORD_KEY), problems)
    caption = next((names[name] for name in CAPTION_COLUMN_NAMES if name in names), None)
    if caption is not None:
        sample.captions += _texts(sample.item, columns[caption], problems)
    split, identity = names.get(SPLIT), names.get(IDENTITY)
    if split is not None and columns[split] is not None:
        sample.split = str(columns[split])
    if identity is not None and columns[identity] not in (None, ""):
        sample.identity = str(columns[identity])
    used = {caption, split, identity, RECORD_KEY}
    sample.metadata |= {str(name): _metadata_value(value) for name, value in columns.items() if name not in used}


def _exported_record(item: str, value: object, problems: Problems) -> Mapping[str, Any] | None:
    """The record of an export, given as an object or as its JSON; None if there is none or it is damaged."""
    if value is None:
        return None
    try:
        found = json.loads(value) if isinstance(value, str) else value
        RECORD_SCHEMA(found, RECORD_KEY)
    except (ValueError, RecursionError) as error:
        problems.repair("damaged record of an export", item, f"{error}; the other columns are used")
        return None
    assert isinstance(found, dict)
    return found


def _texts(item: str, value: object, problems: Problems) -> list[str]:
    """Captions in a column: a string, or a list of strings or of objects with a caption each."""
    found = []
    for one in value if isinstance(value, list) else [value]:
        inner = (
            next((one[name] for name in CAPTION_COLUMN_NAMES if name in one), None) if isinstance(one, dict) else one
        )
        if isinstance(inner, str):
            found.append(inner.strip())
        elif inner is not None:
            problems.skip("caption that is not text", item, f"{inner!r:.60} is no string")
    return [text for text in found if text]


def _metadata_value(value: object) -> MetadataValue:
    if isinstance(value, str):
        return value.strip() or None
    if value is None or isinstance(value, int | float | bool):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def draft_of_samples(name: str, samples: Sequence[Sample], problems: Problems) -> Draft:
    """The draft of a collection. A caption with the same id in several samples of an export describes all of them.

    The id of an image is its key, or group and key where keys are not unique.
    """
    draft = Draft(name)
    repeated = {key for key, count in Counter(sample.key for sample in samples).items() if count > 1}
    numbers = identity_numbers([s.identity for s in samples if s.identity is not None and s.exported is None])
    shared: dict[str, CaptionRecord] = {}
    rows: list[MatchedRow] = []
    for sample in samples:
        if sample.exported is not None:
            _add_exported(draft, sample, sample.exported, shared, problems)
            continue
        image = ImageRecord(sample.item if sample.key in repeated else sample.key, sample.picture)
        image.split = canonical_split(sample.split, sample.item, problems)
        image.identity = None if sample.identity is None else numbers[sample.identity]
        row = MatchedRow(image, sample.item, metadata=sample.metadata)
        for text_ in sample.captions:
            if any(text_ == known.text for known in row.captions):
                problems.skip("caption given twice", sample.item, text_[:60])
                continue
            row.captions.append(CaptionRecord(f"{image.id}#{len(row.captions)}", text_, (image.id,)))
        draft.images.append(image)
        draft.captions += row.captions
        rows.append(row)
    add_metadata(rows, problems)
    return draft


def _add_exported(
    draft: Draft, sample: Sample, about: Mapping[str, Any], shared: dict[str, CaptionRecord], problems: Problems
) -> None:
    """Add an image of an export with its own id, split, identity, metadata and captions."""
    split = canonical_split(about["split"], sample.item, problems)
    image = ImageRecord(about["id"], sample.picture, split, about["identity"], dict(about["metadata"]))
    draft.images.append(image)
    for one in about["captions"]:
        known = shared.get(one["id"])
        if known is None:
            known = CaptionRecord(one["id"], one["text"], (image.id,), dict(one.get("metadata", {})))
            shared[known.id] = known
            draft.captions.append(known)
        elif known.text != one["text"]:
            problems.skip("caption id with two texts", sample.item, f"{known.id} keeps '{known.text[:40]}'")
        else:
            known.images += (image.id,)


def named_split(names: Iterable[str]) -> str | None:
    """The split that a name of a shard or a folder begins with: ``train-0001.tar`` gives train; None without one."""
    for name in names:
        start = name.lower()
        found = next((s for s in SPLIT_NAMES if start == s or start.startswith((f"{s}-", f"{s}_", f"{s}."))), None)
        if found:
            return found
    return None


class SampleExport(NamedTuple):
    """What was written, and what was left out."""

    images: int
    captions: int
    problems: list[tuple[str, str]]
    """id of each image without a readable picture, and why"""
    left_out: list[str]
    """tables of the collection that the format has no place for"""


class ExportedSample(NamedTuple):
    """An image of a collection as it is exported."""

    row: int
    split: str
    suffix: str
    record: dict[str, Any]

    @property
    def captions(self) -> list[str]:
        """The texts of its captions."""
        return [caption["text"] for caption in self.record["captions"]]


def write_samples(collection: Collection, target: Path, write: Callable[[Path], SampleExport]) -> SampleExport:
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


def export_report(collection: Collection, images: int, problems: list[tuple[str, str]]) -> SampleExport:
    """The report of an export of ``images`` images."""
    left_out = [name for name in NOT_EXPORTED if collection.has(name)] + ["features"] * bool(collection.features)
    return SampleExport(images, len(collection.table("captions")), problems, left_out)


def samples_by_split(collection: Collection) -> Mapping[str, list[ExportedSample]]:
    """The images of each split; ``NO_SPLIT`` has the images without a split."""
    found: dict[str, list[ExportedSample]] = {}
    for image in _exported_images(collection):
        found.setdefault(image.split or NO_SPLIT, []).append(image)
    return found


def _exported_images(collection: Collection) -> Iterator[ExportedSample]:
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
        yield ExportedSample(row, str(split or ""), suffix if suffix in PICTURE_SUFFIXES else ".jpg", record)


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


def picture_bytes(collection: Collection, image: ExportedSample, problems: list[tuple[str, str]]) -> bytes | None:
    """The bytes of a picture; None where it cannot be read, which is added to the problems."""
    try:
        return collection.pictures.read(image.row)
    except PictureError as error:
        problems.append((str(image.record["id"]), str(error)))
        return None


def export_csv(collection: Collection, target: Path, *, track: Track = silent) -> SampleExport:
    """Write a table of CLIP's kind, ``pairs.csv``, and the pictures that it names, ``images/``.

    It has a row for each pair of an image and a caption: ``filepath`` (relative to the folder), ``title`` and
    ``split``, with tabs between them, as open_clip reads it. Images without captions have no row.

    Raises:
        UserError: when the target exists, or no image with a caption has a picture.
    """

    def write(folder: Path) -> SampleExport:
        (folder / "images").mkdir()
        problems: list[tuple[str, str]] = []
        rows: list[tuple[str, str, str]] = []
        chosen, images = [image for image in _exported_images(collection) if image.captions], 0
        for image in track(chosen, "writing pictures", len(chosen)):
            if (data := picture_bytes(collection, image, problems)) is None:
                continue
            name = f"images/{image.row:09d}{image.suffix}"
            (folder / name).write_bytes(data)
            rows += [(name, " ".join(text.split()), image.split) for text in image.captions]
            images += 1
        with (folder / CSV_FILE).open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, delimiter="\t")
            table.writerow((CLIP_IMAGE_COLUMN, CLIP_CAPTION_COLUMN, SPLIT))
            table.writerows(rows)
        without = ["images without captions"] * (len(chosen) < len(collection.table("images")))
        report = export_report(collection, images, problems)
        return report._replace(captions=len(rows), left_out=[*report.left_out, *without])

    return write_samples(collection, target, write)
