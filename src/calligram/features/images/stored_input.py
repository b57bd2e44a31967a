"""Image input from feature arrays that are stored in a collection."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.data.pairing import Visuals
from calligram.errors import UserError, command, unknown
from calligram.features.images.pixels import Augment
from calligram.features.inputs import ImageInput
from calligram.progress import Track, silent


def unknown_feature(name: str, stored: Collection[str]) -> UserError:
    """Return an error: the collection has no such features; it names the stored ones, or how to store some."""
    if stored:
        return unknown("stored feature", name, stored)
    regions = command("calligram", "regions", "COLLECTION", "--proposals", "DETECTOR", "--backbone", "NETWORK")
    return UserError(f"unknown stored feature '{name}': the collection has none; store some with {regions}")


@dataclass(frozen=True)
class StoredInput(ImageInput):
    """Reads the feature array ``name`` of the collection; it cannot compute features of a new image."""

    kind: ClassVar[str] = "stored"

    name: str

    def save(self, folder: Path) -> dict[str, Any]:
        """Return the name."""
        del folder
        return {"name": self.name}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> StoredInput:
        """Read what ``save`` returned."""
        del folder
        return cls(str(content["name"]))

    @property
    def stored_name(self) -> str:
        """Name of the stored features."""
        return self.name

    def load(self, visuals: Visuals, track: Track = silent) -> StoredRows:
        """Return the stored rows of these images, memory-mapped."""
        del track
        if self.name not in visuals.features:
            raise unknown_feature(self.name, visuals.features)
        return StoredRows(visuals, self.name)

    def images(self, images: list[Image.Image]) -> Tensor:
        """Refuse: a raw image has no stored features."""
        raise UserError(
            f"this matcher reads the stored features '{self.name}' of its collection; "
            "a new picture has none. Train on pixels to search with pictures"
        )

    def finish(self, rows: Tensor, augment: Augment | None = None) -> Tensor:
        """Return the features as they are stored, or augmented."""
        return rows if augment is None else augment.features(rows)


class StoredRows:
    """Rows of a memory-mapped array."""

    def __init__(self, visuals: Visuals, name: str) -> None:
        self._features, self._rows = visuals.features[name], visuals.rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the features of these images: (N, ...) float32."""
        return torch.from_numpy(self._features.take(self._rows[rows]))


def real_parts(parts: Tensor) -> Tensor:
    """Return the mask (N, R) of real parts of (N, R, D): False for parts of zeros, which pad short lists."""
    return (parts != 0).any(-1)


def feature_parts(features: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the parts (N, R, D) of features, and the mask of the real ones; a vector (N, D) is one part."""
    features = features.unsqueeze(1) if features.ndim == 2 else features
    return features, real_parts(features) if mask is None else mask


def feature_vectors(features: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean over the real parts of features (N, R, D); vectors (N, D) stay as they are."""
    if features.ndim == 2:
        return features
    features, mask = feature_parts(features, mask)
    real = mask.to(features.dtype)
    return (features * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
