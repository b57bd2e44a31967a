"""Regions of pictures as model input: pooled from a backbone's map, stored with the collection or computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.data.collection import Collection
from calligram.data.grounding import BoxesInImages, box_visuals, boxes_of_source
from calligram.data.pairing import Visuals
from calligram.data.region_writing import images_with
from calligram.errors import UserError, command
from calligram.features.backbones import Backbone
from calligram.features.pixels import Augment, PixelInput
from calligram.features.region_rows import GEOMETRY, ComputedRows, StoredRegionRows, computed_rows, geometry
from calligram.features.regions.catalog import proposer_named
from calligram.features.regions.crops import Crops
from calligram.features.regions.pooling import Pooling, in_shares
from calligram.features.regions.proposer import Proposer
from calligram.progress import Track, silent

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Proposed:
    """The proposals of some images with their features, addressed by place."""

    at: BoxesInImages
    rows: StoredRegionRows | ComputedRows


@dataclass(frozen=True)
class RegionInput:
    """Features of boxes, and of whole pictures where no box is given, as one vector each."""

    kind: ClassVar[str] = "regions"

    pooling: Pooling | Crops = field(repr=False, compare=False)
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
        return self.pooling.dim + (GEOMETRY if self.geometry else 0)

    def save(self, folder: Path) -> dict[str, Any]:
        """The backbone's weights go beside the JSON, so that a run needs nothing else."""
        if isinstance(self.pooling, Pooling):
            self.pooling.backbone.save(folder / "backbone")
        plain = {name: getattr(self, name) for name in ("source", "proposals", "top", "geometry")}
        crops = {"bins": self.pooling.bins, "margin": self.pooling.margin} if isinstance(self.pooling, Crops) else None
        return {"pixels": asdict(self.pooling.pixels), "crops": crops, **plain}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> RegionInput:
        """From what ``save`` wrote."""
        given = dict(content)
        pixels, crops = PixelInput.read(folder, given.pop("pixels")), given.pop("crops")
        if crops is not None:
            return cls(Crops(pixels, **crops), **given)
        backbone = Backbone.load(str(folder / "backbone")).eval()
        return cls(Pooling(backbone, pixels, torch.device("cpu")), **given)

    def proposed(self, collection: Collection, images: Ints, track: Track = silent) -> Proposed:
        """The collection's proposals in ``images``; features stored with it are used where they are this network's.

        Raises:
            UserError: when some of the images were never looked at.
        """
        self._check(collection, images)
        at = boxes_of_source(collection, images, self.source)
        order = np.argsort(at.images, kind="stable")
        at = BoxesInImages(at.boxes[order], at.images[order])
        if self._stored(collection):
            sizes = np.stack([collection.numbers("images", side) for side in ("width", "height")], axis=1)
            rows: StoredRegionRows | ComputedRows = StoredRegionRows(collection.features[self.source], at, sizes)
        else:
            rows = self.load(box_visuals(collection, at), track)
        return Proposed(at, rows)

    def _check(self, collection: Collection, images: Ints) -> None:
        missing = len(np.setdiff1d(images, images_with(collection, self.source)))
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

    def load(self, visuals: Visuals, track: Track = silent) -> ComputedRows:
        """Any boxes, or whole pictures: what the collection's store lacks is computed."""
        return computed_rows(self.pooling, visuals, track)

    def propose(self, image: Image.Image, proposer: Proposer | None = None) -> Floats:
        """Boxes of a new picture (R, 4), the whole picture where none are found."""
        found = (proposer or proposer_named(self.proposals, self.top))(image).best(self.top, image).boxes
        return found if len(found) else np.array([[0, 0, *image.size]], dtype=np.float32)

    def regions(self, image: Image.Image, boxes: Floats) -> Tensor:
        """Features of boxes (R, 4) of a new picture, for ``finish``: (R, D + 5)."""
        shares = in_shares(image, boxes)
        pooled = self.pooling([self.pooling.pixels.resize(image)], [shares], len(boxes))[0]
        return torch.from_numpy(np.concatenate([pooled, geometry(shares).astype(np.float16)], axis=1))

    def images(self, images: list[Image.Image]) -> Tensor:
        """Whole pictures, each as the region that is all of it."""
        return torch.cat([self.regions(i, np.array([[0, 0, *i.size]], dtype=np.float32)) for i in images])

    def finish(self, rows: Tensor, augment: Augment | None = None) -> Tensor:
        """Features, and the place where it is wanted, in single precision."""
        del augment
        rows = rows.float()
        if not self.geometry:
            return rows[:, :-GEOMETRY]
        return torch.cat([rows[:, :-GEOMETRY], self.geometry * rows[:, -GEOMETRY:]], dim=1)
