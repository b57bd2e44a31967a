"""Recall of annotated boxes among the first k proposals of an image."""

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

PROPOSAL_COUNTS = (10, 36, 100, 200)
NO_HIT = np.iinfo(np.int64).max
"""rank of a target without a matching proposal"""


@dataclass(frozen=True)
class SourceRecall:
    """Recall of one source of proposals, or of several together."""

    source: str
    recall: dict[int, float | None]
    """percent of targets found among the first k boxes of each source; None where fewer than k were requested"""
    boxes: float
    """mean number of boxes per image"""
    seconds: float | None = None
    """time per image, where it is known"""


@dataclass(frozen=True)
class RecallReport:
    """Recall of each source of a collection, and of all sources together."""

    collection: str
    split: str
    targets: str
    """``phrases`` or ``boxes``"""
    images: int
    count: int
    """number of targets"""
    threshold: float
    rows: list[SourceRecall]


def first_hits(targets: ImageBoxes, proposals: ImageBoxes, threshold: float = 0.5) -> Ints:
    """Return for each target the rank of the first proposal in its image with an IoU of at least ``threshold``: (N,).

    Ranks start at one; ``NEVER`` where there is no such proposal.
    """
    ranks = np.full(len(targets.boxes), NO_HIT, dtype=np.int64)
    order = np.argsort(proposals.images, kind="stable")
    images, boxes = proposals.images[order], proposals.boxes[order]
    for image in np.unique(targets.images):
        start, end = np.searchsorted(images, [image, image + 1])
        where = np.flatnonzero(targets.images == image)
        if end > start:
            reached = iou(targets.boxes[where], boxes[start:end]) >= threshold
            ranks[where] = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, NO_HIT)
    return ranks


def recall_within(ranks: Ints, k: int) -> float:
    """Return the percentage of targets whose first hit is among the first ``k`` proposals."""
    return 100 * float((ranks <= k).mean())


def phrase_targets(collection: Collection, images: Ints, source: str = "truth") -> ImageBoxes:
    """Return one box per phrase and image: the smallest box around all regions of the phrase."""
    return grounded_phrases(collection, images, source).targets


def box_targets(collection: Collection, images: Ints, source: str = "truth") -> ImageBoxes:
    """Return every region of a source, each once."""
    return boxes_of_source(collection, images, source)


TARGET_KINDS = {"phrases": phrase_targets, "boxes": box_targets}


def proposal_recall(
    collection: Collection,
    split: str = "test",
    targets: str = "phrases",
    counts: Sequence[int] = PROPOSAL_COUNTS,
    threshold: float = 0.5,
) -> RecallReport:
    """Return the recall of annotated boxes for every source of proposals in the collection, and for their union.

    Only images that were processed by every source are used, so that the rows can be compared. The union at k has the
    first k boxes of every source.

    Args:
        targets: a key of ``TARGET_KINDS``.

    Raises:
        UserError: when there are no proposals or no annotated boxes.
    """
    sources, rows = _common_images(collection, split)
    wanted = TARGET_KINDS[targets](collection, rows)
    if not len(wanted.boxes):
        raise UserError(
            f"split {split} of {collection.folder} has no annotated {targets} in the images that have proposals"
        )
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


def _common_images(collection: Collection, split: str) -> tuple[list[str], Ints]:
    """Return the sources with proposals in a split, and the images that were processed by all of them."""
    rows = collection.images_in(split)
    processed = {name: np.intersect1d(rows, images) for name, images in _sources(collection).items()}
    sources = [name for name, images in processed.items() if len(images)]
    if not sources:
        raise UserError(
            f"no proposals for split {split} of {collection.folder}; find some with "
            + command("calligram", "regions", collection.folder, "--proposals", "edgeboxes", "--split", split)
        )
    for name in sources:
        rows = np.intersect1d(rows, processed[name])
    return sources, rows


def _sources(collection: Collection) -> dict[str, Ints]:
    """Return every source except the truth, with the images that it processed."""
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
    """Return the requested number of regions per image, or the largest number of an image where it was not recorded."""
    about = _recorded(collection).get(source)
    return int(about["settings"]["top"]) if about else int(np.bincount(found.images).max(initial=0))


def _seconds(collection: Collection, source: str) -> float | None:
    about = _recorded(collection).get(source)
    return float(about["seconds"]) / max(int(about["images"]), 1) if about else None


def _recorded(collection: Collection) -> dict[str, Any]:
    listed = collection.manifest.get("proposals", {})
    assert isinstance(listed, dict)
    return listed
