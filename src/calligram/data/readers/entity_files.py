"""The files of Flickr30K Entities: folders ``Annotations`` and ``Sentences``, or a tar that holds them."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from calligram.data.problems import Problems
from calligram.data.readers.entity_boxes import Annotation, parse_annotation
from calligram.data.readers.entity_markup import MarkedSentence, parse_sentence
from calligram.data.readers.lines import decode_text
from calligram.errors import UserError


@dataclass
class Entities:
    """Sentences and annotation of every image, by its key: the digits that begin a Flickr id."""

    sentences: dict[str, list[MarkedSentence]] = field(default_factory=dict)
    annotations: dict[str, Annotation] = field(default_factory=dict)


def key_of(image_id: str) -> str:
    """The part of a Flickr id that Entities knows an image by.

    >>> key_of("1000268201_693b08cb0e")
    '1000268201'
    """
    return image_id.partition("_")[0]


def read_entities(source: Path, problems: Problems) -> Entities:
    """Read a folder, or a tar (compressed or not), of Annotations and Sentences.

    Raises:
        UserError: when there is neither inside.
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
                    problems.mend("faulty phrase markup", str(name), sentence.fault)
    if not found.sentences:
        raise UserError(f"no Sentences/*.txt in {source}; expected the Annotations and Sentences of Flickr30K Entities")
    for key in sorted(found.sentences.keys() - found.annotations.keys()):
        problems.note("sentences without annotation", key, "its phrases have no boxes")
    return found


def _wanted(name: PurePosixPath) -> bool:
    return (name.parent.name, name.suffix) in (("Annotations", ".xml"), ("Sentences", ".txt")) and name.name[0] != "."


def _folder_files(folder: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    for part in ("Annotations", "Sentences"):
        for path in sorted((folder / part).glob("*")):
            name = PurePosixPath(part, path.name)
            if _wanted(name):
                yield name, path.read_bytes()


def _tar_files(tar: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    try:
        with tarfile.open(tar) as opened:
            for member in opened:
                name = PurePosixPath(member.name)
                file = opened.extractfile(member) if member.isreg() and _wanted(name) else None
                if file:
                    yield PurePosixPath(name.parent.name, name.name), file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"{tar} cannot be read ({error}); is the file whole?") from error
