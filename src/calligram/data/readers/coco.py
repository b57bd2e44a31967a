"""Readers of MS-COCO's ``captions_*.json`` and of Karpathy's ``dataset_{flickr8k,flickr30k,coco}.json``."""

from __future__ import annotations

import re
from pathlib import Path

from calligram.data.draft import CaptionRecord, Draft, ImageRecord, MetadataValue, Problems
from calligram.data.readers.picture_files import PictureIndex, find_pictures
from calligram.data.readers.source import ImportSource, canonical_split
from calligram.data.readers.text_files import (
    JsonRecord,
    list_of,
    number_of,
    read_json,
    read_records,
    records_in,
    text_of,
)
from calligram.errors import UserError

COCO_IMAGE_FOLDERS = ("images", "../images")


KARPATHY_IMAGE_FOLDERS = (
    "images",
    "Images",
    "flickr30k-images",
    "flickr30k_images",
    "Flicker8k_Dataset",
    "Flickr8k_Dataset",
)


def read_coco(source: ImportSource, problems: Problems) -> Draft:
    """Read the given file, or every ``captions_*.json`` in the given folder or its folder ``annotations``.

    The file name gives the split: ``train2014`` is train, ``val2017`` is dev. For the usual test images use Karpathy's
    split, because COCO's own test captions were never published.
    """
    files = _coco_files(source.path)
    folder = files[0].parent
    # In the release, annotations/ is in the same folder as train2014/ and val2014/.
    above = folder.parent if folder.name == "annotations" else folder
    found = find_pictures(above, source.images, COCO_IMAGE_FOLDERS, problems)
    draft = Draft("coco", about={"source": ", ".join(f.name for f in files)})
    for file in files:
        _read_coco_file(draft, file, found, problems)
    return draft


def _coco_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(path.glob("captions_*.json")) or sorted(path.glob("annotations/captions_*.json"))
    if not files:
        raise UserError(f"no captions_*.json in {path} or {path / 'annotations'}; give the file as the source")
    return files


def _read_coco_file(draft: Draft, file: Path, found: PictureIndex, problems: Problems) -> None:
    word = re.sub(r"\d+$", "", file.stem.partition("_")[2])
    split = canonical_split(word, file.name, problems)
    value = read_json(file, problems)
    if not isinstance(value, dict):
        raise UserError(f"{file} must be an object with 'images' and 'annotations', got {type(value).__name__}")
    named: dict[int | None, str] = {}
    for number, record in enumerate(records_in(value, file, problems, "images")):
        key, name = number_of(record, "id"), text_of(record, "file_name")
        if key is None or not name:
            problems.skip("record without an id or a file_name", f"{file.name} image {number}")
            continue
        picture = found.picture_file(name)
        if picture is None:
            problems.skip("missing image file", name, f"not in {found.root}")
        else:
            draft.images.append(ImageRecord(name, picture, split, metadata={"cocoid": key}))
        named[key] = name
    for number, record in enumerate(records_in(value, file, problems, "annotations")):
        image = named.get(number_of(record, "image_id"))
        item = text_of(record, "id") or f"{file.name} annotation {number}"
        if image is None:
            problems.skip("caption of an unknown image", item, f"image_id {record.get('image_id')}")
        else:
            draft.captions.append(CaptionRecord(f"{image}#{item}", text_of(record, "caption"), (image,)))


def read_karpathy(source: ImportSource, problems: Problems) -> Draft:
    """Read the given JSON file, or the only ``dataset*.json`` in the given folder: captions and the usual splits.

    All captions are kept. Some COCO images have six or seven; much published work uses five. ``restval`` is part of
    train.
    """
    file = _karpathy_file(source.path)
    found = find_pictures(file.parent, source.images, KARPATHY_IMAGE_FOLDERS, problems)
    draft = Draft(file.stem.removeprefix("dataset_"), about={"source": f"Karpathy split, {file.name}"})
    for number, record in enumerate(read_records(file, problems, "images")):
        _add_karpathy_image(draft, record, f"{file.name} image {number}", found, problems)
    return draft


def _karpathy_file(path: Path) -> Path:
    if path.is_file():
        return path
    files = sorted(path.glob("dataset*.json"))
    if len(files) != 1:
        held = ", ".join(f.name for f in files) or "none"
        raise UserError(f"{path} must hold one dataset_*.json, it holds {held}; give the file as the source")
    return files[0]


def _add_karpathy_image(draft: Draft, record: JsonRecord, item: str, found: PictureIndex, problems: Problems) -> None:
    name = text_of(record, "filename")
    image = "/".join(part for part in (text_of(record, "filepath"), name) if part)
    if not name:
        problems.skip("record without a filename", item)
        return
    # The pictures of COCO's train2014/ and val2014/ are often in one folder. Their file names are unique.
    picture = found.picture_file(name if found.flat else image)
    if picture is None:
        count = len(list_of(record, "sentences"))
        problems.skip("missing image file", image, f"not in {found.root}; its {count} captions are skipped too")
        return
    metadata: dict[str, MetadataValue] = {k: number_of(record, k) for k in ("cocoid", "imgid") if k in record}
    draft.images.append(
        ImageRecord(image, picture, canonical_split(text_of(record, "split"), image, problems), metadata=metadata)
    )
    for number, sentence in enumerate(list_of(record, "sentences")):
        if not isinstance(sentence, dict):
            problems.skip("unreadable caption", f"{image}#{number}", f"{type(sentence).__name__}, not an object")
            continue
        words = [str(token) for token in list_of(sentence, "tokens")]
        text = text_of(sentence, "raw") or " ".join(words)
        draft.captions.append(CaptionRecord(f"{image}#{number}", text, (image,)))
