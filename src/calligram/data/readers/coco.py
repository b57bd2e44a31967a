"""MS-COCO's ``captions_*.json``: one file or several, each a split by its name."""

from __future__ import annotations

import re
from pathlib import Path

from calligram.data.draft import CaptionRecord, Draft, ImageRecord
from calligram.data.problems import Problems
from calligram.data.readers.found_images import FoundImages, pictures_beside
from calligram.data.readers.json_records import number_of, records_in, text_of
from calligram.data.readers.lines import read_json
from calligram.data.readers.source import Source
from calligram.data.readers.splits import canonical
from calligram.errors import UserError

IMAGE_FOLDERS = ("images", "../images")


def read_coco(source: Source, problems: Problems) -> Draft:
    """Read the file named, or every ``captions_*.json`` in the folder named or its ``annotations``.

    The split is the word in the file's name: ``train2014`` is train, ``val2017`` is dev. For the usual test images use
    Karpathy's split: COCO's own test captions were never published.
    """
    files = _files(source.path)
    folder = files[0].parent
    # The release keeps annotations/ beside train2014/ and val2014/.
    above = folder.parent if folder.name == "annotations" else folder
    found = pictures_beside(above, source.images, IMAGE_FOLDERS, problems)
    draft = Draft("coco", about={"source": ", ".join(f.name for f in files)})
    for file in files:
        _read_file(draft, file, found, problems)
    return draft


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(path.glob("captions_*.json")) or sorted(path.glob("annotations/captions_*.json"))
    if not files:
        raise UserError(f"no captions_*.json in {path} or {path / 'annotations'}; name the file as the source")
    return files


def _read_file(draft: Draft, file: Path, found: FoundImages, problems: Problems) -> None:
    word = re.sub(r"\d+$", "", file.stem.partition("_")[2])
    split = canonical(word, file.name, problems)
    value = read_json(file, problems)
    if not isinstance(value, dict):
        raise UserError(f"{file} must be an object with 'images' and 'annotations', got {type(value).__name__}")
    named: dict[int | None, str] = {}
    for number, record in enumerate(records_in(value, file, problems, "images")):
        key, name = number_of(record, "id"), text_of(record, "file_name")
        if key is None or not name:
            problems.skip("record without an id or a file_name", f"{file.name} image {number}")
            continue
        at = found.at(name)
        if at is None:
            problems.skip("missing image file", name, f"not in {found.root}")
        else:
            draft.images.append(ImageRecord(name, at, split, metadata={"cocoid": key}))
        named[key] = name
    for number, record in enumerate(records_in(value, file, problems, "annotations")):
        image = named.get(number_of(record, "image_id"))
        item = text_of(record, "id") or f"{file.name} annotation {number}"
        if image is None:
            problems.skip("caption of an unknown image", item, f"image_id {record.get('image_id')}")
        else:
            draft.captions.append(CaptionRecord(f"{image}#{item}", text_of(record, "caption"), (image,)))
