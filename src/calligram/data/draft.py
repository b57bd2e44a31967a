"""The output of a reader: records that refer to each other by id, not yet checked or stored, and problems."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calligram.errors import UserError

MetadataValue = str | int | float | bool | None


@dataclass(frozen=True)
class PictureFile:
    """A picture file."""

    path: Path


@dataclass(frozen=True)
class TarMember:
    """A picture inside an uncompressed tar: ``size`` bytes at ``offset``."""

    tar: Path
    name: str
    offset: int
    size: int


@dataclass
class ImageRecord:
    """One image. ``picture`` is None for an image that has only features."""

    id: str
    picture: PictureFile | TarMember | None
    split: str | None = None
    identity: int | None = None
    metadata: dict[str, MetadataValue] = field(default_factory=dict)
    feature_rows: dict[str, int] = field(default_factory=dict)
    """row of this image in each feature array of the draft"""
    size: tuple[int, int] | None = None
    """width and height in the annotation. Boxes are in these pixels, and are scaled to the picture when the collection
    is written. None where boxes are already in pixels of the picture."""


@dataclass(slots=True)
class CaptionRecord:
    """One text and the images that it describes, any number."""

    id: str
    text: str
    images: tuple[str, ...]
    metadata: dict[str, MetadataValue] = field(default_factory=dict)


@dataclass(slots=True)
class RegionRecord:
    """A box in an image, in pixels of ``ImageRecord.size``, or of the picture when that is None.

    In a stored collection, boxes are always in pixels of the upright picture.
    """

    id: str
    image: str
    box: tuple[float, float, float, float]
    source: str = "truth"
    label: str | None = None
    attribute: str | None = None
    score: float | None = None
    identity: int | None = None


@dataclass(slots=True)
class PhraseRecord:
    """Characters ``start`` to ``end`` of a caption, and the regions that they refer to.

    A phrase that its caption does not contain (the annotation has another wording) has ``start`` and ``end`` -1 and its
    own ``text``. It can still be localized in images, but it has no position in the caption.
    """

    id: str
    caption: str
    start: int
    end: int
    kind: str = ""
    """type of entity, with the name that the source uses"""
    entity: str = ""
    """identifier of the entity, shared by all phrases that refer to it"""
    regions: tuple[str, ...] = ()
    text: str = ""
    """words of the phrase, only where the caption does not contain them"""


@dataclass
class Draft:
    """All records of a reader, in order. Records refer to each other by id."""

    name: str
    images: list[ImageRecord] = field(default_factory=list)
    captions: list[CaptionRecord] = field(default_factory=list)
    regions: list[RegionRecord] = field(default_factory=list)
    phrases: list[PhraseRecord] = field(default_factory=list)
    features: dict[str, list[Path]] = field(default_factory=dict)
    """feature arrays by name; each is a list of ``.npy`` files, stacked along the first axis"""
    reader_arrays: frozenset[Path] = frozenset()
    """array files that the reader wrote itself: they are moved into the collection, never referenced"""
    also_true: NDArray[np.int64] | None = None
    """(N, 2) rows of ``images`` and ``captions`` for every true pair, where the source knows all of them"""
    about: dict[str, MetadataValue] = field(default_factory=dict)
    """facts about the source for the manifest: generator, seed, licence"""


@dataclass(frozen=True)
class Problem:
    """One item of the input that was skipped, repaired or noted."""

    kind: str
    item: str
    detail: str
    skipped: bool


@dataclass
class Problems:
    """The problems of an input, item by item. With ``strict``, the first skipped or repaired item raises an error."""

    strict: bool = False
    found: list[Problem] = field(default_factory=list)

    def skip(self, kind: str, item: str, detail: str = "") -> None:
        """Record that ``item`` was left out. ``kind`` is the kind of problem, for counting."""
        self._refuse_if_strict(kind, item, detail, "skipped")
        self.found.append(Problem(kind, item, detail, skipped=True))

    def repair(self, kind: str, item: str, detail: str = "") -> None:
        """Record that ``item`` was wrong and was kept after a repair, which may differ from the intention."""
        self._refuse_if_strict(kind, item, detail, "repaired and kept")
        self.found.append(Problem(kind, item, detail, skipped=False))

    def note(self, kind: str, item: str, detail: str = "") -> None:
        """Record that ``item`` is unusual but usable; ``strict`` does not refuse it."""
        self.found.append(Problem(kind, item, detail, skipped=False))

    def _refuse_if_strict(self, kind: str, item: str, detail: str, otherwise: str) -> None:
        if self.strict:
            tail = f": {detail}" if detail else ""
            raise UserError(f"{kind}: {item}{tail} (refused because of --strict; without it the item is {otherwise})")

    def summary(self) -> list[str]:
        """One line for each kind of problem: the number of items, and the first of them."""
        return summarise_problems(self.found)

    def rows(self) -> list[dict[str, object]]:
        """Rows for the table of problems of the collection."""
        return [asdict(p) for p in self.found]


def summarise_problems(found: Iterable[Problem]) -> list[str]:
    """One line for each kind of problem, most frequent first: the number of items, and the first of them."""
    kinds: dict[tuple[str, bool], list[str]] = {}
    for problem in found:
        kinds.setdefault((problem.kind, problem.skipped), []).append(problem.item)
    lines = []
    for (kind, skipped), items in sorted(kinds.items(), key=lambda entry: -len(entry[1])):
        few = ", ".join(dict.fromkeys(items[:3])) + (", ..." if len(items) > 3 else "")
        lines.append(f"{len(items)} {'skipped' if skipped else 'noted'}: {kind} ({few})")
    return lines
