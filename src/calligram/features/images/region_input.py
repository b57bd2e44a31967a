"""Image input from regions: one vector for each box, stored with the collection or computed once.

``stored_part_boxes`` gives the boxes of the stored regions that a matcher attends to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.data.boxes import iou
from calligram.data.collection import Collection
from calligram.data.grounding import ImageBoxes, box_visuals, boxes_of_source, feature_boxes
from calligram.data.pairing import StoredFeatures, Visuals
from calligram.data.pictures import decode, worker_threads
from calligram.data.revision import images_with_proposals, proposal_record
from calligram.errors import UserError, command
from calligram.features.images.backbones import Backbone
from calligram.features.images.pixels import Augment, PixelInput
from calligram.features.images.resize import map_batches
from calligram.features.inputs import ImageInput
from calligram.features.regions.detectors import YoloX
from calligram.features.regions.proposers import PROPOSERS, Proposer, load_proposer
from calligram.features.regions.region_features import Halves, Pixels, RegionCrops, RegionPooling, relative_boxes
from calligram.features.store import FeatureStore, content_key
from calligram.progress import Track, silent

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

GEOMETRY_DIM = 5
"""numbers that describe the box of a region: x0, y0, x1, y1 and area"""
DETECTOR_FILE = "detector.onnx"
"""file in the folder of a run with the detector whose classes are features"""
BATCH_IMAGES = 16
"""images that go through the backbone in one batch"""
STORE_PART_IMAGES = 512
"""images whose boxes make one part of the feature store; a kill loses at most one part"""


@dataclass(frozen=True)
class ProposalFeatures:
    """The proposals of some images, and their features in the same order."""

    boxes: ImageBoxes
    rows: StoredRegionRows | RegionRows


@dataclass(frozen=True)
class RegionInput(ImageInput):
    """Image input with one vector for each box, or for the whole image if no box is given."""

    kind: ClassVar[str] = "regions"

    pooling: RegionPooling | RegionCrops = field(repr=False, compare=False)
    source: str
    """name of the proposals in a collection"""
    proposals: str
    """method that finds proposals in a new image: a name of ``regions.proposers.PROPOSERS``, or a detector"""
    top: int = 200
    geometry: float = 0.0
    """weight of the relative x0, y0, x1, y1 and area, appended to the features; 0 leaves them out"""
    vote: float = 0.0
    """factor of the scores in the vote of overlapping boxes; 0 for no vote"""

    @property
    def dim(self) -> int:
        """Dimension of a region's vector."""
        return self.pooling.dim + (GEOMETRY_DIM if self.geometry else 0)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the backbone's weights into ``folder``, so that a run needs no other file."""
        if isinstance(self.pooling, RegionPooling):
            self.pooling.backbone.save(folder / "backbone")
            if self.pooling.detector:
                (folder / DETECTOR_FILE).write_bytes(self.pooling.detector.content)
        plain = {name: getattr(self, name) for name in ("source", "proposals", "top", "geometry", "vote")}
        crops = None
        if isinstance(self.pooling, RegionCrops):
            crops = {"bins": self.pooling.bins, "margin": self.pooling.margin}
        return {"pixels": asdict(self.pooling.pixels), "crops": crops, **plain}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> RegionInput:
        """Read what ``save`` wrote."""
        fields = dict(content)
        pixels, crops = PixelInput.read(folder, fields.pop("pixels")), fields.pop("crops")
        if crops is not None:
            return cls(RegionCrops(pixels, **crops), **fields)
        backbone = Backbone.load(str(folder / "backbone")).eval()
        detector = YoloX.load(folder / DETECTOR_FILE) if (folder / DETECTOR_FILE).is_file() else None
        return cls(RegionPooling(backbone, pixels, torch.device("cpu"), detector), **fields)

    @property
    def region_input(self) -> RegionInput:
        """This input."""
        return self

    def proposal_features(self, collection: Collection, images: Ints, track: Track = silent) -> ProposalFeatures:
        """Return the collection's proposals in ``images`` and their features.

        Features stored in the collection are used if this network computed them; otherwise they are computed.

        Raises:
            UserError: when proposals were not computed for some of the images.
        """
        self._check_proposals(collection, images)
        found = boxes_of_source(collection, images, self.source)
        order = np.argsort(found.images, kind="stable")
        boxes = ImageBoxes(found.boxes[order], found.images[order])
        if self._has_stored_features(collection):
            sizes = np.stack([collection.numbers("images", side) for side in ("width", "height")], axis=1)
            rows: StoredRegionRows | RegionRows = StoredRegionRows(collection.features[self.source], boxes, sizes)
        else:
            rows = self.load(box_visuals(collection, boxes), track)
        return ProposalFeatures(boxes, rows)

    def training_proposals(self, collection: Collection, source: str) -> RegionInput:
        """Return this input with the proposals ``source`` of a collection, or itself where no source is given.

        Raises:
            UserError: when the collection has no such proposals.
        """
        if not source:
            return self
        known = proposal_record(collection, source)
        if known is None:
            wanted = command("calligram", "regions", collection.folder, "--proposals", source, "--split", "train")
            raise UserError(
                f"collection {collection.folder} has no proposals '{source}' (region.training); find some with {wanted}"
            )
        return replace(self, source=source, top=int(known["settings"]["top"]))

    def _check_proposals(self, collection: Collection, images: Ints) -> None:
        missing = len(np.setdiff1d(images, images_with_proposals(collection, self.source)))
        if missing:
            raise UserError(
                f"{missing} of {len(images)} images of {collection.folder} have no proposals '{self.source}'; find "
                "them with "
                + command("calligram", "regions", collection.folder, "--proposals", self.proposals, "--top", self.top)
            )

    def _has_stored_features(self, collection: Collection) -> bool:
        entries = collection.manifest.get("proposals", {})
        assert isinstance(entries, dict)
        settings = entries.get(self.source, {}).get("settings", {})
        return self.source in collection.features and settings.get("features") == dict(self.pooling.settings)

    def load(self, visuals: Visuals, track: Track = silent) -> RegionRows:
        """Return features of boxes or whole images; features that the collection's store lacks are computed."""
        return compute_region_rows(self.pooling, visuals, track)

    def propose(self, image: Image.Image, proposer: Proposer | None = None) -> Floats:
        """Propose boxes (R, 4) in a new image; the whole image if none are found."""
        found = (proposer or load_proposer(self.proposals, self.top))(image).keep_top(self.top, image).boxes
        return found if len(found) else np.array([[0, 0, *image.size]], dtype=np.float32)

    def voted(self, scores: Floats, boxes: Floats) -> Floats:
        """Let the boxes (R, 4) of an image vote for the boxes that they overlap; without a vote, return the scores.

        Args:
            scores: (T, R) score of each box for each phrase.

        Returns:
            (T, R) sum of the probabilities of all boxes, each multiplied by its IoU. The probabilities of a phrase are
            the softmax of ``vote`` times its scores.
        """
        if not self.vote:
            return scores
        probabilities = torch.from_numpy(self.vote * scores).softmax(dim=1).numpy()
        total: Floats = (probabilities @ iou(boxes, boxes)).astype(np.float32)
        return total

    def regions(self, image: Image.Image, boxes: Floats) -> Tensor:
        """Compute features of boxes (R, 4) in a new image, for ``finish``: (R, D + 5)."""
        relative = relative_boxes(image, boxes)
        pooled = self.pooling([self.pooling.pixels.resize(image)], [relative], len(boxes))[0]
        return torch.from_numpy(np.concatenate([pooled, box_geometry(relative).astype(np.float16)], axis=1))

    def images(self, images: list[Image.Image]) -> Tensor:
        """Compute features of whole images, one region each."""
        return torch.cat([self.regions(i, np.array([[0, 0, *i.size]], dtype=np.float32)) for i in images])

    def finish(self, rows: Tensor, augment: Augment | None = None) -> Tensor:
        """Return features in single precision, with the weighted geometry if it is used."""
        del augment
        rows = rows.float()
        if not self.geometry:
            return rows[:, :-GEOMETRY_DIM]
        return torch.cat([rows[:, :-GEOMETRY_DIM], self.geometry * rows[:, -GEOMETRY_DIM:]], dim=1)


class StoredRegionRows:
    """Proposals whose features the collection holds as (regions, D) for each image: memory-mapped."""

    def __init__(self, features: StoredFeatures, boxes: ImageBoxes, sizes: Ints) -> None:
        """Args:
        boxes: boxes sorted by image; within an image, in the order of their features.
        sizes: (images, 2) width and height of every image of the collection.
        """
        self._features, self._images = features, boxes.images
        self._rank = np.arange(len(boxes)) - np.searchsorted(boxes.images, boxes.images)
        self._geometry = box_geometry((boxes.boxes / np.tile(sizes[boxes.images], 2)).astype(np.float32))

    def __len__(self) -> int:
        return len(self._images)

    def take(self, rows: Ints) -> Tensor:
        """Return features and geometry of these regions in half precision: (N, D + 5)."""
        pooled = self._features.take_parts(self._images[rows], self._rank[rows])
        return torch.from_numpy(np.concatenate([pooled, self._geometry[rows].astype(np.float16)], axis=1))


class RegionRows:
    """Features of regions, held in memory."""

    def __init__(self, values: Halves) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def take(self, rows: Ints) -> Tensor:
        """Return features and geometry of these regions in half precision: (N, D + 5)."""
        return torch.from_numpy(self._values[rows])


def compute_region_rows(pooling: RegionPooling | RegionCrops, visuals: Visuals, track: Track = silent) -> RegionRows:
    """Read features of boxes or whole images from the collection's cache; compute and store the missing ones."""
    store = FeatureStore(visuals.pictures.cache, {"regions": dict(pooling.settings), "dim": pooling.dim + GEOMETRY_DIM})
    images, image_of = np.unique(visuals.rows, return_inverse=True)
    with worker_threads() as pool:
        contents = list(pool.map(lambda row: content_key(visuals.pictures.read(row)), images.tolist()))
    box_keys = ["whole"] * len(visuals) if visuals.boxes is None else _box_keys(visuals.boxes)
    keys = [f"{contents[image]}:{box}" for image, box in zip(image_of.tolist(), box_keys, strict=True)]
    if any(key not in store for key in keys):
        with store.fill():
            missing = np.array([number for number, key in enumerate(keys) if key not in store], dtype=np.int64)
            pending: list[tuple[list[str], Halves]] = []
            groups = _group_by_image(image_of, missing)
            for group, values in track(_extract_groups(pooling, visuals, groups), "extracting regions", len(groups)):
                pending.append(([keys[number] for number in group.tolist()], values))
                if len(pending) == STORE_PART_IMAGES:
                    _append_pending(store, pending)
            _append_pending(store, pending)
    return RegionRows(store.take(keys) if keys else np.zeros((0, pooling.dim + GEOMETRY_DIM), dtype=np.float16))


def _append_pending(store: FeatureStore, pending: list[tuple[list[str], Halves]]) -> None:
    if pending:
        store.append([key for keys, _ in pending for key in keys], np.concatenate([values for _, values in pending]))
        pending.clear()


def _box_keys(boxes: Floats) -> list[str]:
    """Return boxes as strings, rounded to a hundredth of a pixel, as part of a store key."""
    return [",".join(f"{v:.2f}" for v in box) for box in boxes.tolist()]


def _group_by_image(image_of: Ints, chosen: Ints) -> list[Ints]:
    """Split the chosen items into one group for each image."""
    if not len(chosen):
        return []
    order = chosen[np.argsort(image_of[chosen], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(image_of[order])) + 1)


def _extract_groups(
    pooling: RegionPooling | RegionCrops, visuals: Visuals, groups: Sequence[Ints]
) -> Iterator[tuple[Ints, Halves]]:
    """Yield features of groups of boxes; on a GPU, the next images are decoded while the network runs."""

    def decode_group(group: Ints) -> tuple[Ints, Pixels, Floats]:
        image = decode(visuals.pictures.read(int(visuals.rows[group[0]])))
        whole = np.array([[0, 0, *image.size]], dtype=np.float32)
        boxes = whole if visuals.boxes is None else visuals.boxes[group]
        return group, pooling.pixels.resize(image), relative_boxes(image, boxes)

    ahead = isinstance(pooling, RegionPooling) and pooling.device.type != "cpu"
    with worker_threads() as pool:
        for decoded in map_batches(pool, decode_group, groups, BATCH_IMAGES, ahead=ahead):
            _, pixels, boxes_of = zip(*decoded, strict=True)
            pooled = pooling(pixels, boxes_of, max(len(group) for group, _, _ in decoded))
            for (group, _, boxes), values in zip(decoded, pooled, strict=True):
                features = np.concatenate([values[: len(boxes)], box_geometry(boxes).astype(np.float16)], axis=1)
                # Without boxes, an image that is listed twice has one region, repeated.
                yield group, np.repeat(features, len(group), axis=0) if visuals.boxes is None else features


def box_geometry(boxes: Floats) -> Floats:
    """Return corners and area of boxes (N, 4) in relative coordinates: (N, 5)."""
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return np.concatenate([boxes, area[:, None]], axis=1).astype(np.float32)


def stored_part_boxes(name: str, collection: Collection, row: int) -> Floats | None:
    """Return the relative boxes (R, 4) of an image's stored features ``name``; None if the features have no boxes.

    See also: ``ImageInput.part_boxes``, for features that are computed from pixels.
    """
    boxes = feature_boxes(collection, name, row)
    size = [int(collection.numbers("images", side)[row]) for side in ("width", "height")]
    if not len(boxes) or min(size) < 1:
        return None
    relative: Floats = np.clip(boxes / np.array([*size, *size]), 0, 1).astype(np.float32)
    return relative


@dataclass(frozen=True)
class RegionSettings:
    """Settings of regions: the boxes and their features."""

    proposals: Annotated[str, "name of the collection's proposals, as given to calligram regions"] = "edgeboxes"
    training: Annotated[
        str,
        "name of the proposals of training images, such as edgeboxes-dense; empty for those of region.proposals",
        "rare",
    ] = ""
    proposer: Annotated[
        str,
        "file or folder of a detector that proposes boxes in new images; empty for the method of the proposals",
        "rare",
    ] = ""
    backbone: Annotated[str, "folder or hub name of a vision model; empty for pixels as features"] = ""
    detector: Annotated[
        str, "file of a YOLOX detector (.onnx); the classes that it finds in a box are added to its features", "rare"
    ] = ""
    size: Annotated[int, "side of the square input image in pixels", (8, 4096), "rare"] = 448
    bins: Annotated[int, "side in pixels to which a box is resized, without a backbone", (1, 64), "rare"] = 8
    margin: Annotated[float, "margin around a box as a share of its sides, without a backbone", (0, 10), "rare"] = 0.25
    geometry: Annotated[
        float, "weight of the position and area of a box, added to its features; 0 as in the paper", (0, 100)
    ] = 0.0
    vote: Annotated[
        float,
        "factor of the scores with which overlapping boxes vote for each other; 0 for no vote, as in the paper",
        (0, 1000),
        "rare",
    ] = 0.0


def region_input(region: RegionSettings, collection: Collection, device: torch.device | str = "cpu") -> RegionInput:
    """Return the input of box features, with the settings of the collection's proposals."""
    known = proposal_record(collection, region.proposals)
    if known is None:
        raise UserError(
            f"collection {collection.folder} has no proposals '{region.proposals}'; find some with "
            + command(
                "calligram",
                "regions",
                collection.folder,
                *["--proposals", "edgeboxes", "--top", "200"],
                *["--backbone", "FOLDER", "--size", "448"],
            )
        )
    method = str(known["settings"]["proposals"]["method"])
    pooling: RegionPooling | RegionCrops = RegionCrops(PixelInput(region.size), region.bins, region.margin)
    if region.backbone:
        pooling = RegionPooling.load(region.backbone, region.size, torch.device(device), region.detector)
    elif region.detector:
        raise UserError("region.detector adds classes to the features of a network; give region.backbone as well")
    top = int(known["settings"]["top"])
    if region.proposer:
        load_proposer(region.proposer, top)  # raises for an unknown name now, not when the run is used
    proposer = region.proposer or (method if method in PROPOSERS else region.proposals)
    return RegionInput(pooling, region.proposals, proposer, top, region.geometry, region.vote)
