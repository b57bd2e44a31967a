"""How much of the truth proposals reach: recall of annotated boxes among the first k proposals of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calligram.data.boxes import iou
from calligram.data.collection import Collection
from calligram.data.grounding import ImageBoxes, boxes_of_source, grounded_phrases
from calligram.errors import UserError, command

Ints = NDArray[np.int64]

COUNTS = (10, 36, 100, 200)
NEVER = np.iinfo(np.int64).max
"""rank of a box that no proposal reaches"""


@dataclass(frozen=True)
class SourceRecall:
    """One method of proposing, or several together."""

    source: str
    recall: dict[int, float | None]
    """percent of the targets reached within k boxes of each source; None where fewer than k were asked for"""
    boxes: float
    """mean number of boxes an image"""
    seconds: float | None = None
    """time an image took, where it is known"""


@dataclass(frozen=True)
class RecallReport:
    """Recall of every source of a collection, and of all of them together."""

    collection: str
    split: str
    targets: str
    """``phrases`` or ``boxes``"""
    images: int
    count: int
    """of targets"""
    threshold: float
    rows: list[SourceRecall]


def first_hits(targets: ImageBoxes, proposals: ImageBoxes, threshold: float = 0.5) -> Ints:
    """For each target the rank of the first proposal in its image with an IoU of at least ``threshold``: (N,).

    Ranks start at one; ``NEVER`` where there is no such proposal.
    """
    ranks = np.full(len(targets.boxes), NEVER, dtype=np.int64)
    order = np.argsort(proposals.images, kind="stable")
    images, boxes = proposals.images[order], proposals.boxes[order]
    for image in np.unique(targets.images):
        start, end = np.searchsorted(images, [image, image + 1])
        where = np.flatnonzero(targets.images == image)
        if end > start:
            reached = iou(targets.boxes[where], boxes[start:end]) >= threshold
            ranks[where] = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, NEVER)
    return ranks


def recall_within(ranks: Ints, k: int) -> float:
    """Percent of targets whose first hit is among the first ``k`` proposals."""
    return 100 * float((ranks <= k).mean())


def phrase_targets(collection: Collection, images: Ints, source: str = "truth") -> ImageBoxes:
    """One box for each phrase and image: the smallest around all regions of the phrase there."""
    return grounded_phrases(collection, images, source).targets


def box_targets(collection: Collection, images: Ints, source: str = "truth") -> ImageBoxes:
    """Every region of a source by itself, once, however many phrases speak of it."""
    return boxes_of_source(collection, images, source)


TARGETS = {"phrases": phrase_targets, "boxes": box_targets}


def proposal_recall(
    collection: Collection,
    split: str = "test",
    targets: str = "phrases",
    counts: Sequence[int] = COUNTS,
    threshold: float = 0.5,
) -> RecallReport:
    """Recall of the annotated boxes for every source of proposals in the collection and for their union.

    Only images that every source has looked at count, so that the rows can be compared. The union at k has the first k
    boxes of every source.

    Args:
        targets: a name in ``TARGETS``.

    Raises:
        UserError: when there is nothing to compare.
    """
    sources, rows = _looked_at(collection, split)
    wanted = TARGETS[targets](collection, rows)
    if not len(wanted.boxes):
        raise UserError(f"split {split} of {collection.folder} has no annotated {targets} in the images looked at")
    found = {name: box_targets(collection, rows, name) for name in sources}
    ranks = {name: first_hits(wanted, boxes, threshold) for name, boxes in found.items()}
    limits = {name: _limit(collection, name, found[name]) for name in sources}
    report = [
        SourceRecall(
            name,
            {k: recall_within(ranks[name], k) if k <= limits[name] else None for k in counts},
            len(found[name].boxes) / len(rows),
            _seconds(collection, name),
        )
        for name in sources
    ]
    if len(sources) > 1:
        best = np.min(list(ranks.values()), axis=0)
        together = {k: recall_within(best, k) if k <= max(limits.values()) else None for k in counts}
        report.append(SourceRecall("union", together, sum(row.boxes for row in report)))
    return RecallReport(collection.name, split, targets, len(rows), len(wanted.boxes), threshold, report)


def _looked_at(collection: Collection, split: str) -> tuple[list[str], Ints]:
    """The sources with proposals in a split, and the images that all of them have looked at."""
    rows = collection.images_in(split)
    looked = {name: np.intersect1d(rows, images) for name, images in _sources(collection).items()}
    sources = [name for name, images in looked.items() if len(images)]
    if not sources:
        raise UserError(
            f"no proposals for split {split} of {collection.folder}; find some with "
            + command("calligram", "regions", collection.folder, "--proposals", "edgeboxes", "--split", split)
        )
    for name in sources:
        rows = np.intersect1d(rows, looked[name])
    return sources, rows


def _sources(collection: Collection) -> dict[str, Ints]:
    """Every source but the truth, with the images it has looked at."""
    listed = _recorded(collection)
    table = collection.table("proposals") if collection.has("proposals") else None
    found: dict[str, Ints] = {}
    for name in listed:
        assert table is not None
        of = np.array([s == name for s in table.column("source").to_pylist()], dtype=bool)
        found[name] = np.asarray(table.column("image").to_numpy(), dtype=np.int64)[of]
    of_region = np.array([str(s) for s in collection.column("regions", "source")], dtype=object)
    for name in sorted(set(of_region.tolist()) - set(listed) - {"truth"}):
        found[name] = np.unique(collection.numbers("regions", "image")[of_region == name])
    return found


def _limit(collection: Collection, source: str, found: ImageBoxes) -> int:
    """How many regions of an image were asked for; where nobody knows, how many an image has at most."""
    about = _recorded(collection).get(source)
    return int(about["settings"]["top"]) if about else int(np.bincount(found.images).max(initial=0))


def _seconds(collection: Collection, source: str) -> float | None:
    about = _recorded(collection).get(source)
    return float(about["seconds"]) / max(int(about["images"]), 1) if about else None


def _recorded(collection: Collection) -> dict[str, Any]:
    listed = collection.manifest.get("proposals", {})
    assert isinstance(listed, dict)
    return listed
