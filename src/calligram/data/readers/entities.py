"""Reader of Flickr30K Entities: captions, their phrases, and the boxes that the phrases refer to.

``join_entities`` adds phrases and boxes to images that already have captions (Flickr8k).
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from calligram.data.draft import (
    CaptionRecord,
    Draft,
    ImageRecord,
    MetadataValue,
    PhraseRecord,
    PictureFile,
    Problems,
    RegionRecord,
)
from calligram.data.readers.entities_annotations import (
    Annotation,
    MarkedSentence,
    align_spans,
    pair_sentences,
    parse_annotation,
    parse_sentence,
)
from calligram.data.readers.picture_files import find_pictures
from calligram.data.readers.source import ImportSource, first_file
from calligram.data.readers.text_files import decode_text, read_lines
from calligram.errors import UserError

IMAGE_FOLDERS = ("flickr30k-images", "flickr30k_images", "images", "Images")
SPLIT_FILES = {"train": ("train.txt",), "dev": ("val.txt", "dev.txt"), "test": ("test.txt",)}


def read_entities_collection(source: ImportSource, problems: Problems) -> Draft:
    """Read ``Annotations`` and ``Sentences`` (a folder or a tar) and the pictures whose names start with their keys.

    Captions are the sentences without markup. Captions listed in ``UNRELATED_CAPTIONS`` are kept, as in all published
    results, and marked ``unrelated``. Splits come from ``train.txt``, ``val.txt`` and ``test.txt``.
    """
    entities = read_entities(source.path, problems)
    found = find_pictures(source.folder, source.images, IMAGE_FOLDERS, problems)
    pictures: dict[str, Path] = {}
    for path in found.paths.values():
        if flickr_key(path.stem) in pictures:
            problems.skip("two pictures of one key", path.name, f"{pictures[flickr_key(path.stem)].name} is kept")
        pictures.setdefault(flickr_key(path.stem), path)
    splits = _splits(source.folder, problems)
    unrelated = _unrelated(source.folder, problems)
    draft = Draft("flickr30k-entities", about={"source": "Flickr30K Entities, Plummer et al. (2015)"})
    for key in entities.sentences:
        if key not in pictures:
            count = len(entities.sentences[key])
            problems.skip("missing image file", key, f"not in {found.root}; its {count} captions are skipped too")
            continue
        split = splits.get(key) or splits.get(pictures[key].stem)
        _add_image(draft, entities, key, ImageRecord(pictures[key].stem, PictureFile(pictures[key]), split), unrelated)
    return draft


def _add_image(draft: Draft, entities: Entities, key: str, image: ImageRecord, unrelated: set[tuple[str, int]]) -> None:
    annotation = entities.annotations.get(key, Annotation())
    image.size = annotation.size
    draft.images.append(image)
    add_regions(draft, image.id, annotation)
    for number, sentence in enumerate(entities.sentences[key]):
        marks: dict[str, MetadataValue] = {"unrelated": True} if (key, number) in unrelated else {}
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
    """Captions that are listed as unrelated to their image, as (key, sentence number).

    The file counts sentences from 1: its numbers go up to 5 and are never 0.
    """
    file = first_file([folder], "UNRELATED_CAPTIONS", "UNRELATED_CAPTIONS.txt")
    marked: set[tuple[str, int]] = set()
    for line in read_lines(file, problems) if file else ():
        key, _, number = line.partition(" ")
        if number.strip().isdigit():
            marked.add((key, int(number) - 1))
            problems.note("caption listed as unrelated", f"{key}#{int(number) - 1}", "kept and marked")
    return marked


@dataclass
class Entities:
    """Sentences and annotation of each image, by its key: the digits at the start of a Flickr id."""

    sentences: dict[str, list[MarkedSentence]] = field(default_factory=dict)
    annotations: dict[str, Annotation] = field(default_factory=dict)


def flickr_key(image_id: str) -> str:
    """The key of an image in Flickr30K Entities: the part of its Flickr id before the underscore.

    >>> flickr_key("1000268201_693b08cb0e")
    '1000268201'
    """
    return image_id.partition("_")[0]


def read_entities(source: Path, problems: Problems) -> Entities:
    """Read the folders ``Annotations`` and ``Sentences``, in a folder or in a tar (compressed or not).

    Raises:
        UserError: when there are no sentences.
    """
    found = Entities()
    for name, data in _tar_files(source) if source.is_file() else _folder_files(source):
        key = name.stem
        if name.suffix == ".xml":
            found.annotations[key] = parse_annotation(data, str(name), problems)
        else:
            lines = decode_text(data, str(name), problems).splitlines()
            found.sentences[key] = [parse_sentence(line) for line in lines if line.strip()]
            for sentence in found.sentences[key]:
                if sentence.fault:
                    problems.repair("faulty phrase markup", str(name), sentence.fault)
    if not found.sentences:
        raise UserError(f"no Sentences/*.txt in {source}; expected the Annotations and Sentences of Flickr30K Entities")
    for key in sorted(found.sentences.keys() - found.annotations.keys()):
        problems.note("sentences without annotation", key, "its phrases have no boxes")
    return found


def _is_entities_file(name: PurePosixPath) -> bool:
    return (name.parent.name, name.suffix) in (("Annotations", ".xml"), ("Sentences", ".txt")) and name.name[0] != "."


def _folder_files(folder: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    for part in ("Annotations", "Sentences"):
        for path in sorted((folder / part).glob("*")):
            name = PurePosixPath(part, path.name)
            if _is_entities_file(name):
                yield name, path.read_bytes()


def _tar_files(tar: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    try:
        with tarfile.open(tar) as opened:
            for member in opened:
                name = PurePosixPath(member.name)
                file = opened.extractfile(member) if member.isreg() and _is_entities_file(name) else None
                if file:
                    yield PurePosixPath(name.parent.name, name.name), file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"{tar} cannot be read ({error}); is the file complete?") from error


def add_regions(draft: Draft, image: str, annotation: Annotation) -> None:
    """Add the boxes of one image, in pixels of the image size in the annotation."""
    draft.regions += [RegionRecord(region_id(image, n), image, box) for n, box in enumerate(annotation.boxes)]


def region_id(image: str, number: int) -> str:
    """Id of a box. Boxes are numbered in the order of the annotation, so ids are stable."""
    return f"{image}/box{number}"


def add_phrases(
    draft: Draft,
    caption: CaptionRecord,
    sentence: MarkedSentence,
    spans: Sequence[tuple[int, int] | None],
    annotation: Annotation,
) -> None:
    """Add the phrases of one sentence to its caption; ``spans`` holds their positions in the caption."""
    image = caption.images[0]
    for number, (phrase, span) in enumerate(zip(sentence.phrases, spans, strict=True)):
        start, end = span or (-1, -1)
        draft.phrases.append(
            PhraseRecord(
                f"{caption.id}/phrase{number}",
                caption.id,
                start,
                end,
                kind="/".join(phrase.types),
                entity=phrase.entity,
                regions=tuple(region_id(image, n) for n in annotation.boxes_of(phrase.chain)),
                text="" if span else sentence.text[phrase.start : phrase.end],
            )
        )


def join_entities(
    draft: Draft, captions_of: Mapping[str, Sequence[CaptionRecord]], entities: Entities, problems: Problems
) -> None:
    """Add boxes and phrases to images that have their own captions (Flickr8k).

    The captions do not change, so that retrieval results stay comparable. Each sentence of Entities is paired with the
    caption that is most similar, and its phrases are aligned with the caption. A phrase that the caption does not
    contain keeps its own text and has no position in the caption.
    """
    for image in draft.images:
        key = flickr_key(image.id)
        annotation = entities.annotations.get(key, Annotation())
        image.size = image.size or annotation.size
        add_regions(draft, image.id, annotation)
        sentences = entities.sentences.get(key, [])
        captions = captions_of.get(image.id, ())
        if len(captions) != len(sentences):
            problems.note(
                "number of sentences differs", image.id, f"{len(captions)} captions, {len(sentences)} in Entities"
            )
        paired = pair_sentences([c.text for c in captions], [s.text for s in sentences])
        for caption, number in zip(captions, paired, strict=True):
            if number is not None:
                _join_caption(draft, caption, sentences[number], annotation, problems)


def _join_caption(
    draft: Draft, caption: CaptionRecord, sentence: MarkedSentence, annotation: Annotation, problems: Problems
) -> None:
    spans = align_spans(caption.text, sentence.text, [(p.start, p.end) for p in sentence.phrases])
    for phrase, span in zip(sentence.phrases, spans, strict=True):
        if span is None:
            words = sentence.text[phrase.start : phrase.end]
            problems.note("phrase not found in its caption", caption.id, f"'{words}'; kept without a position")
    add_phrases(draft, caption, sentence, spans, annotation)
