"""Regions of pictures as model input: pooled from a backbone's map, stored with the collection or computed once."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.data.collection import Collection
from calligram.data.grounding import ImageBoxes, box_visuals, boxes_of_source, feature_boxes
from calligram.data.pairing import StoredFeatures, Visuals
from calligram.data.pictures import decode
from calligram.data.revision import images_with_proposals
from calligram.errors import UserError, command
from calligram.features.images.backbones import Backbone, BackboneInput
from calligram.features.images.pixels import Augment, PixelInput
from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import ImageInput
from calligram.features.regions.proposers import Proposer, load_proposer
from calligram.features.regions.region_features import Halves, Pixels, RegionCrops, RegionPooling, relative_boxes
from calligram.features.store import FeatureStore, content_key
from calligram.progress import Track, silent

# Features of many boxes: read from arrays stored with a collection, or computed once and kept in its cache.

GEOMETRY_DIM = 5
"""numbers that say where a region is"""
BATCH_IMAGES = 16
"""pictures that go through the backbone together"""
STORE_PART_IMAGES = 512
"""pictures whose boxes make a part of the store: what a kill can cost"""


def box_geometry(shares: Floats) -> Floats:
    """Corners and area of boxes (N, 4) in shares of the picture: (N, 5)."""
    area = (shares[:, 2] - shares[:, 0]) * (shares[:, 3] - shares[:, 1])
    return np.concatenate([shares, area[:, None]], axis=1).astype(np.float32)


class StoredRegionRows:
    """Proposals whose features the collection holds as (regions, D) for each image: memory-mapped."""

    def __init__(self, features: StoredFeatures, at: ImageBoxes, sizes: Ints) -> None:
        """Args:
        at: boxes sorted by image, those of an image in the order of their features.
        sizes: (images, 2) width and height of every image of the collection.
        """
        self._features, self._images = features, at.images
        self._rank = np.arange(len(at)) - np.searchsorted(at.images, at.images)
        self._geometry = box_geometry((at.boxes / np.tile(sizes[at.images], 2)).astype(np.float32))

    def __len__(self) -> int:
        return len(self._images)

    def take(self, rows: Ints) -> Tensor:
        """These regions' features and places in half precision: (N, D + 5)."""
        pooled = self._features.take_parts(self._images[rows], self._rank[rows])
        return torch.from_numpy(np.concatenate([pooled, self._geometry[rows].astype(np.float16)], axis=1))


class RegionRows:
    """Regions whose features are in a store; those asked for are held in memory."""

    def __init__(self, values: Halves) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def take(self, rows: Ints) -> Tensor:
        """These regions' features and places in half precision: (N, D + 5)."""
        return torch.from_numpy(self._values[rows])


def compute_region_rows(pooling: RegionPooling | RegionCrops, visuals: Visuals, track: Track = silent) -> RegionRows:
    """Features of these boxes, or whole pictures, from the collection's cache; what it lacks is computed first."""
    store = FeatureStore(visuals.pictures.cache, {"regions": dict(pooling.settings), "dim": pooling.dim + GEOMETRY_DIM})
    images, place = np.unique(visuals.rows, return_inverse=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        contents = list(pool.map(lambda row: content_key(visuals.pictures.read(row)), images.tolist()))
    marks = ["whole"] * len(visuals) if visuals.boxes is None else _box_keys(visuals.boxes)
    keys = [f"{contents[p]}:{mark}" for p, mark in zip(place.tolist(), marks, strict=True)]
    missing = np.array([number for number, key in enumerate(keys) if key not in store], dtype=np.int64)
    waiting: list[tuple[list[str], Halves]] = []
    groups = _group_by_image(place, missing)
    for group, values in track(_extract_groups(pooling, visuals, groups), "extracting regions", len(groups)):
        waiting.append(([keys[number] for number in group.tolist()], values))
        if len(waiting) == STORE_PART_IMAGES:
            _append_pending(store, waiting)
    _append_pending(store, waiting)
    return RegionRows(store.take(keys) if keys else np.zeros((0, pooling.dim + GEOMETRY_DIM), dtype=np.float16))


def _append_pending(store: FeatureStore, waiting: list[tuple[list[str], Halves]]) -> None:
    if waiting:
        store.append([key for keys, _ in waiting for key in keys], np.concatenate([values for _, values in waiting]))
        waiting.clear()


def _box_keys(boxes: Floats) -> list[str]:
    """Boxes to a hundredth of a pixel, as part of a name."""
    return [",".join(f"{v:.2f}" for v in box) for box in boxes.tolist()]


def _group_by_image(place: Ints, chosen: Ints) -> list[Ints]:
    """The chosen items in groups of one image each."""
    if not len(chosen):
        return []
    order = chosen[np.argsort(place[chosen], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(place[order])) + 1)


def _extract_groups(
    pooling: RegionPooling | RegionCrops, visuals: Visuals, groups: Sequence[Ints]
) -> Iterator[tuple[Ints, Halves]]:
    """Features of groups of boxes in order; the next pictures are decoded while the network works on these."""
    chunks = [groups[i : i + BATCH_IMAGES] for i in range(0, len(groups), BATCH_IMAGES)]
    with ThreadPoolExecutor(os.cpu_count()) as decoders, ThreadPoolExecutor(1) as ahead:

        def look(group: Ints) -> tuple[Pixels, Floats]:
            image = decode(visuals.pictures.read(int(visuals.rows[group[0]])))
            whole = np.array([[0, 0, *image.size]], dtype=np.float32)
            boxes = whole if visuals.boxes is None else visuals.boxes[group]
            return pooling.pixels.resize(image), pooling.shares(image, boxes)

        def prepare(chunk: Sequence[Ints]) -> list[tuple[Pixels, Floats]]:
            return list(decoders.map(look, chunk))

        coming = [ahead.submit(prepare, chunk) for chunk in chunks[:1]]
        for number, chunk in enumerate(chunks):
            seen = coming.pop().result()
            if number + 1 < len(chunks):
                coming.append(ahead.submit(prepare, chunks[number + 1]))
            pooled = pooling([p for p, _ in seen], [s for _, s in seen], max(len(group) for group in chunk))
            for group, (_, shares), values in zip(chunk, seen, pooled, strict=True):
                whole = np.concatenate([values[: len(shares)], box_geometry(shares).astype(np.float16)], axis=1)
                # A picture that stands there twice without a box is one region.
                yield group, np.repeat(whole, len(group), axis=0) if visuals.boxes is None else whole


Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ProposalFeatures:
    """The proposals of some images with their features, addressed by place."""

    boxes: ImageBoxes
    rows: StoredRegionRows | RegionRows


@dataclass(frozen=True)
class RegionInput:
    """Features of boxes, and of whole pictures where no box is given, as one vector each."""

    kind: ClassVar[str] = "regions"

    pooling: RegionPooling | RegionCrops = field(repr=False, compare=False)
    source: str
    """what the proposals are called in a collection"""
    proposals: str
    """method that finds them in a new picture: a name of ``regions.catalog.PROPOSALS``, or a detector"""
    top: int = 200
    geometry: float = 0.0
    """weight of x0, y0, x1, y1 and area, in shares of the picture, beside the features; 0 leaves them out"""

    @property
    def dim(self) -> int:
        """Numbers of a region."""
        return self.pooling.dim + (GEOMETRY_DIM if self.geometry else 0)

    def save(self, folder: Path) -> dict[str, Any]:
        """The backbone's weights go beside the JSON, so that a run needs nothing else."""
        if isinstance(self.pooling, RegionPooling):
            self.pooling.backbone.save(folder / "backbone")
        plain = {name: getattr(self, name) for name in ("source", "proposals", "top", "geometry")}
        crops = (
            {"bins": self.pooling.bins, "margin": self.pooling.margin}
            if isinstance(self.pooling, RegionCrops)
            else None
        )
        return {"pixels": asdict(self.pooling.pixels), "crops": crops, **plain}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> RegionInput:
        """From what ``save`` wrote."""
        given = dict(content)
        pixels, crops = PixelInput.read(folder, given.pop("pixels")), given.pop("crops")
        if crops is not None:
            return cls(RegionCrops(pixels, **crops), **given)
        backbone = Backbone.load(str(folder / "backbone")).eval()
        return cls(RegionPooling(backbone, pixels, torch.device("cpu")), **given)

    def proposal_features(self, collection: Collection, images: Ints, track: Track = silent) -> ProposalFeatures:
        """The collection's proposals in ``images``; features stored with it are used where they are this network's.

        Raises:
            UserError: when some of the images were never looked at.
        """
        self._check(collection, images)
        at = boxes_of_source(collection, images, self.source)
        order = np.argsort(at.images, kind="stable")
        at = ImageBoxes(at.boxes[order], at.images[order])
        if self._stored(collection):
            sizes = np.stack([collection.numbers("images", side) for side in ("width", "height")], axis=1)
            rows: StoredRegionRows | RegionRows = StoredRegionRows(collection.features[self.source], at, sizes)
        else:
            rows = self.load(box_visuals(collection, at), track)
        return ProposalFeatures(at, rows)

    def _check(self, collection: Collection, images: Ints) -> None:
        missing = len(np.setdiff1d(images, images_with_proposals(collection, self.source)))
        if missing:
            raise UserError(
                f"{missing} of {len(images)} images of {collection.folder} have no proposals '{self.source}'; find "
                "them with "
                + command("calligram", "regions", collection.folder, "--proposals", self.proposals, "--top", self.top)
            )

    def _stored(self, collection: Collection) -> bool:
        listed = collection.manifest.get("proposals", {})
        assert isinstance(listed, dict)
        settings = listed.get(self.source, {}).get("settings", {})
        return self.source in collection.features and settings.get("features") == dict(self.pooling.settings)

    def load(self, visuals: Visuals, track: Track = silent) -> RegionRows:
        """Any boxes, or whole pictures: what the collection's store lacks is computed."""
        return compute_region_rows(self.pooling, visuals, track)

    def propose(self, image: Image.Image, proposer: Proposer | None = None) -> Floats:
        """Boxes of a new picture (R, 4), the whole picture where none are found."""
        found = (proposer or load_proposer(self.proposals, self.top))(image).best(self.top, image).boxes
        return found if len(found) else np.array([[0, 0, *image.size]], dtype=np.float32)

    def regions(self, image: Image.Image, boxes: Floats) -> Tensor:
        """Features of boxes (R, 4) of a new picture, for ``finish``: (R, D + 5)."""
        shares = relative_boxes(image, boxes)
        pooled = self.pooling([self.pooling.pixels.resize(image)], [shares], len(boxes))[0]
        return torch.from_numpy(np.concatenate([pooled, box_geometry(shares).astype(np.float16)], axis=1))

    def images(self, images: list[Image.Image]) -> Tensor:
        """Whole pictures, each as the region that is all of it."""
        return torch.cat([self.regions(i, np.array([[0, 0, *i.size]], dtype=np.float32)) for i in images])

    def finish(self, rows: Tensor, augment: Augment | None = None) -> Tensor:
        """Features, and the place where it is wanted, in single precision."""
        del augment
        rows = rows.float()
        if not self.geometry:
            return rows[:, :-GEOMETRY_DIM]
        return torch.cat([rows[:, :-GEOMETRY_DIM], self.geometry * rows[:, -GEOMETRY_DIM:]], dim=1)


# Where the parts of a picture lie that a matcher of parts sees: cells of a grid, or boxes stored with a collection.


def square_grid_boxes(pixels: PixelInput, size: tuple[int, int], count: int) -> Floats | None:
    """The cells of a square grid in reading order: left, top, right and bottom in shares of the picture, (count, 4).

    They divide evenly what is seen of the picture: all of it, or its middle square. None where ``count`` is no square.

    Args:
        size: width and height of the picture.
    """
    side = math.isqrt(count)
    if side * side != count or min(size) < 1:
        return None
    left, top, right, bottom = pixels.visible_box(*size)
    xs, ys = np.linspace(left, right, side + 1) / size[0], np.linspace(top, bottom, side + 1) / size[1]
    y, x = (axis.ravel() for axis in np.indices((side, side)))
    return np.stack([xs[x], ys[y], xs[x + 1], ys[y + 1]], axis=1).astype(np.float32)


def grid_part_boxes(images: ImageInput, size: tuple[int, int], count: int) -> Floats | None:
    """The cells of a picture as this input sees it; None where its parts are no cells.

    See also: ``boxes_of``, for stored features.
    """
    pixels = images.pixels if isinstance(images, BackboneInput) else images
    if not isinstance(pixels, PixelInput) or (isinstance(images, BackboneInput) and images.parts != "grid"):
        return None
    return square_grid_boxes(pixels, size, count)


def stored_part_boxes(images: StoredInput, collection: Collection, row: int) -> Floats | None:
    """The boxes of an image's stored features in shares of the picture, (R, 4); None where they have none."""
    boxes = feature_boxes(collection, images.name, row)
    size = [int(collection.numbers("images", side)[row]) for side in ("width", "height")]
    if not len(boxes) or min(size) < 1:
        return None
    shares: Floats = np.clip(boxes / np.array([*size, *size]), 0, 1).astype(np.float32)
    return shares
