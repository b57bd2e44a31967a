"""Karpathy's ``dataset_{flickr8k,flickr30k,coco}.json``: captions and splits of the usual collections."""

from __future__ import annotations

from pathlib import Path

from calligram.data.draft import CaptionRecord, Draft, ImageRecord, Value
from calligram.data.problems import Problems
from calligram.data.readers.found_images import FoundImages, pictures_beside
from calligram.data.readers.json_records import Record, list_of, number_of, read_records, text_of
from calligram.data.readers.source import Source
from calligram.data.readers.splits import canonical
from calligram.errors import UserError

IMAGE_FOLDERS = ("images", "Images", "flickr30k-images", "flickr30k_images", "Flicker8k_Dataset", "Flickr8k_Dataset")


def read_karpathy(source: Source, problems: Problems) -> Draft:
    """Read the JSON named, or the only ``dataset*.json`` in the folder named.

    All captions are kept, though many take five of an image: some of COCO have six or seven. ``restval`` is trained on.
    """
    file = _file(source.path)
    found = pictures_beside(file.parent, source.images, IMAGE_FOLDERS, problems)
    draft = Draft(file.stem.removeprefix("dataset_"), about={"source": f"Karpathy split, {file.name}"})
    for number, record in enumerate(read_records(file, problems, "images")):
        _add_image(draft, record, f"{file.name} image {number}", found, problems)
    return draft


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    files = sorted(path.glob("dataset*.json"))
    if len(files) != 1:
        held = ", ".join(f.name for f in files) or "none"
        raise UserError(f"{path} must hold one dataset_*.json, it holds {held}; name the file as the source")
    return files[0]


def _add_image(draft: Draft, record: Record, item: str, found: FoundImages, problems: Problems) -> None:
    name = text_of(record, "filename")
    image = "/".join(part for part in (text_of(record, "filepath"), name) if part)
    if not name:
        problems.skip("record without a filename", item)
        return
    # The pictures of COCO's train2014/ and val2014/ are often put into one folder, under names that are distinct.
    at = found.at(name if found.flat else image)
    if at is None:
        count = len(list_of(record, "sentences"))
        problems.skip("missing image file", image, f"not in {found.root}; its {count} captions go with it")
        return
    metadata: dict[str, Value] = {k: number_of(record, k) for k in ("cocoid", "imgid") if k in record}
    draft.images.append(ImageRecord(image, at, canonical(text_of(record, "split"), image, problems), metadata=metadata))
    for number, sentence in enumerate(list_of(record, "sentences")):
        if not isinstance(sentence, dict):
            problems.skip("unreadable caption", f"{image}#{number}", f"{type(sentence).__name__}, not an object")
            continue
        words = [str(token) for token in list_of(sentence, "tokens")]
        text = text_of(sentence, "raw") or " ".join(words)
        draft.captions.append(CaptionRecord(f"{image}#{number}", text, (image,)))
