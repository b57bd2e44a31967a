"""Reader of CUHK-PEDES: descriptions of people, matched by identity."""

from __future__ import annotations

from pathlib import Path

from calligram.data.draft import CaptionRecord, Draft, ImageRecord, Problems
from calligram.data.readers.picture_files import PictureIndex, find_pictures
from calligram.data.readers.source import ImportSource, canonical_split, required_file
from calligram.data.readers.text_files import JsonRecord, list_of, number_of, read_records, text_of

PUBLISHED_SPLIT_SIZES = (("train", 34054), ("dev", 3078), ("test", 3074))
"""number of images of each split, in the order of ``caption_all.json``"""


def read_cuhk_pedes(source: ImportSource, problems: Problems) -> Draft:
    """Read ``reid_raw.json``, or ``caption_all.json``, which holds the same records without splits.

    Without splits, a complete file of 40,206 records is split in its order, as published. With another number of
    records, a hash of the identity decides, so that no person is in two splits.
    """
    file = source.path
    if not file.is_file():
        file = required_file([source.path], "reid_raw.json", "caption_all.json", what="CUHK-PEDES captions")
    found = find_pictures(file.parent, source.images, ("imgs", "images"), problems)
    records = read_records(file, problems)
    draft = Draft("cuhk-pedes", about={"source": f"CUHK-PEDES, {file.name}"})
    if not any("split" in record for record in records):
        _split_by_order(records, file, problems)
    for number, record in enumerate(records):
        _add_image(draft, record, f"{file.name} record {number}", found, problems)
    _note_people_in_two_splits(draft, problems)
    return draft


def _split_by_order(records: list[JsonRecord], file: Path, problems: Problems) -> None:
    if len(records) != sum(count for _, count in PUBLISHED_SPLIT_SIZES):
        problems.note("no splits", file.name, f"{len(records)} records, not the published 40206: split by person")
        return
    names = [split for split, count in PUBLISHED_SPLIT_SIZES for _ in range(count)]
    records[:] = [{**record, "split": split} for record, split in zip(records, names, strict=True)]


def _add_image(draft: Draft, record: JsonRecord, item: str, found: PictureIndex, problems: Problems) -> None:
    image = text_of(record, "file_path")
    if not image:
        problems.skip("record without a file_path", item)
        return
    picture = found.picture_file(image)
    if picture is None:
        count = len(list_of(record, "captions"))
        problems.skip("missing image file", image, f"not in {found.root}; its {count} captions are skipped too")
        return
    person = number_of(record, "id")
    if person is None or person < 0:
        problems.repair(
            "record without a person's id", image, f"got {record.get('id')!r}; it matches only its own captions"
        )
    split = canonical_split(text_of(record, "split"), image, problems)
    draft.images.append(ImageRecord(image, picture, split, person if person is None or person >= 0 else None))
    for number, text in enumerate(list_of(record, "captions")):
        draft.captions.append(CaptionRecord(f"{image}#{number}", str(text), (image,)))


def _note_people_in_two_splits(draft: Draft, problems: Problems) -> None:
    splits: dict[int, set[str]] = {}
    for record in draft.images:
        if record.identity is not None and record.split:
            splits.setdefault(record.identity, set()).add(record.split)
    for person, names in splits.items():
        if len(names) > 1:
            problems.note("person in two splits", str(person), ", ".join(sorted(names)))
