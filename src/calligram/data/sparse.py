"""Sparse annotation: views of a collection in which only some training images have captions.

Removed captions, and all rows that refer to them, are in no table of the view. Training therefore cannot use them by
mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.files import content_hash, text_hash

Ints = NDArray[np.int64]
RowMask = NDArray[np.bool_]
AnnotationUnit = Literal["pairs", "images"]

EXTENDED_EPOCHS = ((0.1, 2.5), (0.2, 2.0), (0.5, 1.2), (1.0, 1.0))
"""share of annotations, and the paper's factor on the number of epochs"""
EXTRA_IMAGES_KEY = "further captions"
"""manifest key with the ids of images that keep captions in addition to the sparsity level"""
SPARSE_SPLIT = "train"
"""the split that loses captions; dev and test do not change"""


@dataclass(frozen=True)
class Sparsity:
    """The share of the annotations that is kept."""

    images: float = 1.0
    """share of the captioned images that keep captions, 0 to 1"""
    captions: int | None = None
    """number of captions that each of them keeps; all when None"""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.images <= 1:
            raise UserError(f"the share of images that keep captions must be from 0 to 1, got {self.images}")
        if self.captions is not None and self.captions < 1:
            raise UserError(f"the captions of each image must be at least 1, or None for all, got {self.captions}")

    @property
    def keeps_all(self) -> bool:
        """Whether all captions are kept."""
        return self.images == 1 and self.captions is None

    def __str__(self) -> str:
        each = "all captions" if self.captions is None else f"{self.captions} caption" + "s" * (self.captions > 1)
        return f"{100 * self.images:g}% of images x {each}, seed {self.seed}"


def sparse_view(collection: Collection, sparsity: Sparsity) -> Collection:
    """A view of the collection without the removed captions; the collection itself where none are removed."""
    return (
        collection
        if sparsity.keeps_all
        else _SparseCollection(collection, kept_matches(collection, sparsity), str(sparsity))
    )


def with_extra_captions(collection: Collection, images: Ints, sparsity: Sparsity, how: str) -> Collection:
    """A sparse view in which these additional images keep captions too, with the same number for each image.

    Args:
        images: rows of training images.
        how: how the images were chosen, for the name of the view.
    """
    kept = kept_matches(collection, sparsity, images)
    made = _SparseCollection(collection, kept, f"{sparsity}, and {len(images)} images {how}")
    made.manifest = {**made.manifest, EXTRA_IMAGES_KEY: collection.visuals(images).ids}
    return made


class _SparseCollection(Collection):
    """A view of another collection; captions and references to them are renumbered."""

    def __init__(self, whole: Collection, kept: RowMask, how: str) -> None:
        tables = _without_captions(whole, kept)
        counts = whole.manifest.get("counts", {})
        assert isinstance(counts, dict)
        changed = {"name": f"{whole.name} ({how})", "counts": {**counts, **{n: len(t) for n, t in tables.items()}}}
        super().__init__(whole.folder, {**whole.manifest, **changed})
        # Tables that have been read are kept: a later revision of the collection may have removed their files.
        self._tables.update({**whole._tables, **tables})
        self._whole, self._kept = whole, kept

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the full collection and of the kept matches."""
        return content_hash(self._whole.fingerprint.encode() + self._kept.tobytes(), 8)


def kept_matches(collection: Collection, sparsity: Sparsity, extra_images: Ints | None = None) -> RowMask:
    """Whether each row of ``matches`` is kept (a3vse, Sec. 4.1).

    Hashes of the ids and the seed define an order of the images, and of the captions of each image. A sparsity level
    keeps the first images and the first captions. A caption of two images may be kept for one of them only.

    Args:
        extra_images: rows of images that keep captions regardless of the order.
    """
    image, caption = collection.numbers("matches", "image"), collection.numbers("matches", "caption")
    split = np.flatnonzero(np.array([s == SPARSE_SPLIT for s in collection.column("images", "split")], dtype=bool))
    captioned = np.intersect1d(split, image)
    of_split = np.isin(image, split)
    image_ids, caption_ids = collection.column("images", "id"), collection.column("captions", "id")
    order = captioned[_hash_order([str(image_ids[i]) for i in captioned], sparsity.seed)]
    chosen = order[: round(sparsity.images * len(order))]
    if extra_images is not None:
        chosen = np.union1d(chosen, extra_images)
    kept = ~of_split | np.isin(image, chosen)
    if sparsity.captions is not None:
        rows = np.flatnonzero(of_split & kept)
        names = [f"{image_ids[i]}/{caption_ids[c]}" for i, c in zip(image[rows], caption[rows], strict=True)]
        rows = rows[_hash_order(names, sparsity.seed)]
        kept[rows[_rank_in_group(image[rows]) >= sparsity.captions]] = False
    return kept


def _hash_order(names: Sequence[str], seed: int) -> Ints:
    """Positions of the names sorted by a hash of the name and the seed."""
    keys = [text_hash(f"{seed}/{name}", 16) for name in names]
    return np.array(sorted(range(len(names)), key=lambda place: (keys[place], place)), dtype=np.int64)


def _rank_in_group(groups: Ints) -> Ints:
    """Number of earlier items of the same group, for each item."""
    order = np.argsort(groups, kind="stable")
    ranked = groups[order]
    place = np.empty(len(groups), dtype=np.int64)
    place[order] = np.arange(len(groups)) - np.searchsorted(ranked, ranked)
    return place


def _without_captions(whole: Collection, kept: RowMask) -> dict[str, pa.Table]:
    """The tables without captions that lost all their matches, and without rows that refer to them."""
    captions = whole.table("captions")
    before, after = (np.zeros(len(captions), dtype=bool) for _ in range(2))
    before[whole.numbers("matches", "caption")] = True
    after[whole.numbers("matches", "caption")[kept]] = True
    # A caption that never matched an image is not removed.
    stays = after | ~before
    made = {"captions": captions.filter(pa.array(stays))}
    made["matches"] = _renumber_references(whole.table("matches").filter(pa.array(kept)), "caption", stays)[0]
    if whole.has("also_true"):
        made["also_true"] = _renumber_references(whole.table("also_true"), "caption", stays)[0]
    if whole.has("phrases"):
        made["phrases"], phrases = _renumber_references(whole.table("phrases"), "caption", stays)
        made["groundings"] = _renumber_references(whole.table("groundings"), "phrase", phrases)[0]
    return made


def _renumber_references(table: pa.Table, column: str, stays: RowMask) -> tuple[pa.Table, RowMask]:
    """The rows of ``table`` whose reference in ``column`` is kept, with new row numbers; and a mask of these rows."""
    numbers = table.column(column).to_numpy()
    rows = stays[numbers]
    place = (np.cumsum(stays) - 1)[numbers[rows]]
    field = table.schema.get_field_index(column)
    return table.filter(pa.array(rows)).set_column(field, column, pa.array(place, table.column(column).type)), rows


def extended(share: float) -> float:
    """Return the factor on the number of epochs at a share of annotations (a3vse, Sec. 4.2).

    The paper gives it at 10%, 20% and 50%. In between it is interpolated linearly over the logarithm of the share;
    below 10% it is 2.5.
    """
    shares, factors = zip(*EXTENDED_EPOCHS, strict=True)
    return float(np.interp(np.log(max(share, 1e-12)), np.log(shares), factors))


def half(share: float) -> float:
    """Return the factor, at least 1, that gives half of the steps of all annotations (a3vse, Sec. 4.2)."""
    return max(1.0, 0.5 / max(share, 1e-12))


def half_steps(
    whole: Collection, sparse: Collection, batch: int, unit: AnnotationUnit = "pairs", texts: int = 1
) -> int:
    """Return half of the steps of an epoch of all annotations (a3vse, Sec. 4.2).

    Args:
        batch: number of images of a step.
        unit: what an epoch passes over.
        texts: number of texts that come with an image.

    Returns:
        0, for one pass, where a pass over the sparse collection has as many steps.
    """
    before, after = (count_annotations(collection, unit, texts) for collection in (whole, sparse))
    return 0 if 2 * after >= before else max(1, round(before / batch / 2))


def count_annotations(collection: Collection, unit: AnnotationUnit = "pairs", texts: int = 1) -> int:
    """Count training pairs, ``texts`` of an image as one, or captioned training images."""
    images = collection.numbers("matches", "image")
    counts = np.unique(images[np.isin(images, collection.images_in(SPARSE_SPLIT))], return_counts=True)[1]
    return int((-(-counts // texts)).sum()) if unit == "pairs" else len(counts)
