"""What a reader hands over: records by id, not yet checked or stored."""

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
    """A picture in a file of its own."""

    path: Path


@dataclass(frozen=True)
class TarMember:
    """A picture inside an uncompressed tar: ``size`` bytes from ``offset``."""

    tar: Path
    name: str
    offset: int
    size: int


@dataclass
class ImageRecord:
    """One image. ``at`` is None where only features are known."""

    id: str
    picture: PictureFile | TarMember | None
    split: str | None = None
    identity: int | None = None
    metadata: dict[str, MetadataValue] = field(default_factory=dict)
    feature_rows: dict[str, int] = field(default_factory=dict)
    """row of this image in each of the draft's feature arrays"""
    size: tuple[int, int] | None = None
    """width and height the source states; its boxes are in these pixels, and are scaled to the picture's own pixels
    when written. None where the boxes are in the picture's pixels already."""


@dataclass(slots=True)
class CaptionRecord:
    """One text and the images it describes: any number of them."""

    id: str
    text: str
    images: tuple[str, ...]
    metadata: dict[str, MetadataValue] = field(default_factory=dict)


@dataclass(slots=True)
class RegionRecord:
    """A box in an image, in pixels of ``ImageRecord.size`` (or of the picture when that is None).

    In a stored collection boxes are always in pixels of the stored, upright picture.
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
    """Characters ``start`` to ``end`` of a caption, and the regions they speak of.

    A phrase whose words its caption does not hold (an annotation of another wording) has ``start`` and ``end`` of -1
    and its own ``text``: it can still be looked for in images, but it has no place in the caption.
    """

    id: str
    caption: str
    start: int
    end: int
    kind: str = ""
    """type of entity as the source names it"""
    entity: str = ""
    """name of the thing, shared by phrases that speak of the same one"""
    regions: tuple[str, ...] = ()
    text: str = ""
    """only where the caption does not hold the words"""


@dataclass
class Draft:
    """Everything a reader found, in order. Cross references are by id."""

    name: str
    images: list[ImageRecord] = field(default_factory=list)
    captions: list[CaptionRecord] = field(default_factory=list)
    regions: list[RegionRecord] = field(default_factory=list)
    phrases: list[PhraseRecord] = field(default_factory=list)
    features: dict[str, list[Path]] = field(default_factory=dict)
    """named arrays, each a stack of ``.npy`` files"""
    reader_arrays: frozenset[Path] = frozenset()
    """those of the arrays that the reader wrote itself: moved into the collection, never referenced"""
    also_true: NDArray[np.int64] | None = None
    """(N, 2) rows of ``images`` and ``captions`` that are true together, where the source knows them all"""
    about: dict[str, MetadataValue] = field(default_factory=dict)
    """facts about the source for the manifest: generator, seed, licence"""


# What was wrong with the input, item by item, so that nothing is lost in silence.


@dataclass(frozen=True)
class Problem:
    """One item that was skipped, or kept with a change."""

    kind: str
    item: str
    detail: str
    skipped: bool


@dataclass
class Problems:
    """A list of problems; with ``strict`` the first item skipped or mended raises instead."""

    strict: bool = False
    found: list[Problem] = field(default_factory=list)

    def skip(self, kind: str, item: str, detail: str = "") -> None:
        """Record that ``item`` was left out. ``kind`` names the sort of problem, for counting."""
        self._refuse_if_strict(kind, item, detail, "skipped")
        self.found.append(Problem(kind, item, detail, skipped=True))

    def repair(self, kind: str, item: str, detail: str = "") -> None:
        """Record that ``item`` was wrong and kept after a repair that may not be what was meant."""
        self._refuse_if_strict(kind, item, detail, "kept, mended")
        self.found.append(Problem(kind, item, detail, skipped=False))

    def note(self, kind: str, item: str, detail: str = "") -> None:
        """Record that ``item`` was kept and is usable but looks odd; never refused."""
        self.found.append(Problem(kind, item, detail, skipped=False))

    def _refuse_if_strict(self, kind: str, item: str, detail: str, otherwise: str) -> None:
        if self.strict:
            tail = f": {detail}" if detail else ""
            raise UserError(f"{kind}: {item}{tail} (refused because of --strict; without it the item is {otherwise})")

    def summary(self) -> list[str]:
        """One line for each kind of problem: how many, and the first few items."""
        return summarise_problems(self.found)

    def rows(self) -> list[dict[str, object]]:
        """For the collection's table of problems."""
        return [asdict(p) for p in self.found]


def summarise_problems(found: Iterable[Problem]) -> list[str]:
    """One line for each kind of problem, the commonest first: how many, and the first few items."""
    kinds: dict[tuple[str, bool], list[str]] = {}
    for problem in found:
        kinds.setdefault((problem.kind, problem.skipped), []).append(problem.item)
    lines = []
    for (kind, skipped), items in sorted(kinds.items(), key=lambda entry: -len(entry[1])):
        few = ", ".join(dict.fromkeys(items[:3])) + (", ..." if len(items) > 3 else "")
        lines.append(f"{len(items)} {'skipped' if skipped else 'noted'}: {kind} ({few})")
    return lines
