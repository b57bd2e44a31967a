"""Feature arrays that came with a collection as model input."""

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
from calligram.progress import Track, silent


def unknown_feature(name: str, stored: Collection[str]) -> UserError:
    """Say that a collection has no feature arrays of this name, and which it has or how it gets some."""
    if stored:
        return unknown("stored feature", name, stored)
    regions = command("calligram", "regions", "COLLECTION", "--proposals", "DETECTOR", "--backbone", "NETWORK")
    return UserError(f"unknown stored feature '{name}': the collection has none; store some with {regions}")


@dataclass(frozen=True)
class StoredInput:
    """Reads the array ``name`` of the collection; there is nothing here that could compute it for a new picture."""

    kind: ClassVar[str] = "stored"

    name: str

    def save(self, folder: Path) -> dict[str, Any]:
        """The name."""
        del folder
        return {"name": self.name}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> StoredInput:
        """From what ``save`` gave."""
        del folder
        return cls(str(content["name"]))

    def load(self, visuals: Visuals, track: Track = silent) -> StoredRows:
        """The stored rows of these images, still on disk."""
        del track
        if self.name not in visuals.features:
            raise unknown_feature(self.name, visuals.features)
        return StoredRows(visuals, self.name)

    def images(self, images: list[Image.Image]) -> Tensor:
        """Refuse: a raw picture has no stored features."""
        raise UserError(
            f"this matcher reads the stored features '{self.name}', which came with its collection; "
            "a new picture has none. Train on pixels to search with pictures"
        )

    def finish(self, rows: Tensor, augment: Augment | None = None) -> Tensor:
        """As stored."""
        return rows if augment is None else augment.features(rows)


class StoredRows:
    """Rows of a memory-mapped array."""

    def __init__(self, visuals: Visuals, name: str) -> None:
        self._features, self._rows = visuals.features[name], visuals.rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """These images' features: (N, ...) float32."""
        return torch.from_numpy(self._features.take(self._rows[rows]))


def real_parts(parts: Tensor) -> Tensor:
    """Which parts (N, R, D) are there: True but for those that are zero throughout, which fill up short lists."""
    return (parts != 0).any(-1)
