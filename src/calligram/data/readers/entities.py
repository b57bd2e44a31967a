"""Flickr30K Entities with its images: captions, phrases in them, and the boxes they speak of."""

from __future__ import annotations

from pathlib import Path

from calligram.data.draft import CaptionRecord, Draft, FileAt, ImageRecord, Value
from calligram.data.problems import Problems
from calligram.data.readers.entity_boxes import Annotation
from calligram.data.readers.entity_files import Entities, key_of, read_entities
from calligram.data.readers.entity_records import add_phrases, add_regions
from calligram.data.readers.found_images import pictures_beside
from calligram.data.readers.lines import read_lines
from calligram.data.readers.source import Source, first_file

IMAGE_FOLDERS = ("flickr30k-images", "flickr30k_images", "images", "Images")
SPLIT_FILES = {"train": ("train.txt",), "dev": ("val.txt", "dev.txt"), "test": ("test.txt",)}


def read_entities_collection(source: Source, problems: Problems) -> Draft:
    """Read ``Annotations`` and ``Sentences`` (a folder or a tar) and the pictures whose names begin with their keys.

    Captions are the sentences without markup. Captions listed in ``UNRELATED_CAPTIONS`` are kept, as every published
    result keeps them, and marked ``unrelated``. Splits come from ``train.txt``, ``val.txt`` and ``test.txt``.
    """
    entities = read_entities(source.path, problems)
    found = pictures_beside(source.folder, source.images, IMAGE_FOLDERS, problems)
    pictures: dict[str, Path] = {}
    for path in found.paths.values():
        if key_of(path.stem) in pictures:
            problems.skip("two pictures of one key", path.name, f"{pictures[key_of(path.stem)].name} is kept")
        pictures.setdefault(key_of(path.stem), path)
    splits = _splits(source.folder, problems)
    unrelated = _unrelated(source.folder, problems)
    draft = Draft("flickr30k-entities", about={"source": "Flickr30K Entities, Plummer et al. (2015)"})
    for key in entities.sentences:
        if key not in pictures:
            count = len(entities.sentences[key])
            problems.skip("missing image file", key, f"not in {found.root}; its {count} captions go with it")
            continue
        split = splits.get(key) or splits.get(pictures[key].stem)
        _add_image(draft, entities, key, ImageRecord(pictures[key].stem, FileAt(pictures[key]), split), unrelated)
    return draft


def _add_image(draft: Draft, entities: Entities, key: str, image: ImageRecord, unrelated: set[tuple[str, int]]) -> None:
    annotation = entities.annotations.get(key, Annotation())
    image.size = annotation.size
    draft.images.append(image)
    add_regions(draft, image.id, annotation)
    for number, sentence in enumerate(entities.sentences[key]):
        marks: dict[str, Value] = {"unrelated": True} if (key, number) in unrelated else {}
        caption = CaptionRecord(f"{image.id}#{number}", sentence.text, (image.id,), marks)
        draft.captions.append(caption)
        add_phrases(draft, caption, sentence, [(p.start, p.end) for p in sentence.phrases], annotation)


def _splits(folder: Path, problems: Problems) -> dict[str, str]:
    splits: dict[str, str] = {}
    for split, names in SPLIT_FILES.items():
        file = first_file([folder], *names)
        for line in read_lines(file, problems) if file else ():
            splits[line.removesuffix(".jpg")] = split
    return splits


def _unrelated(folder: Path, problems: Problems) -> set[tuple[str, int]]:
    """Captions said not to describe their image, as key and line.

    The file counts sentences from 1: its numbers reach 5 and never 0.
    """
    file = first_file([folder], "UNRELATED_CAPTIONS", "UNRELATED_CAPTIONS.txt")
    marked: set[tuple[str, int]] = set()
    for line in read_lines(file, problems) if file else ():
        key, _, number = line.partition(" ")
        if number.strip().isdigit():
            marked.add((key, int(number) - 1))
            problems.note("caption said to be unrelated", f"{key}#{int(number) - 1}", "kept and marked")
    return marked
