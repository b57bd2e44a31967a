"""A matcher's image side at work: what is done for each picture by itself, and what for many at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from calligram.data.pictures import PictureError
from calligram.features.backbone_input import BackboneInput
from calligram.features.pixels import PixelInput
from calligram.features.stored import StoredInput
from calligram.models.matcher import Encoded
from calligram.models.stored import Stored
from calligram.search.scanning import Entry
from calligram.search.sources import Pictures

Prepared = Tensor | Image.Image


class ImageEncoder:
    """Prepares pictures in any thread and encodes them in batches."""

    def __init__(self, stored: Stored, device: torch.device | str = "cpu") -> None:
        self.stored, self.device = stored, torch.device(device)
        self.matcher = stored.to(self.device).matcher.eval()
        self._input = stored.inputs.images

    @property
    def feature(self) -> str | None:
        """Name of the stored features it reads instead of pictures."""
        return self._input.name if isinstance(self._input, StoredInput) else None

    def reduced(self, image: Image.Image) -> Image.Image | None:
        """What ``prepare`` makes of the whole picture on its way, for others to use; None if nothing."""
        pixels = self._input.pixels if isinstance(self._input, BackboneInput) else self._input
        found = pixels.reduced(image) if isinstance(pixels, PixelInput) else image
        return found if found is not image else None

    def prepare(
        self, image: Image.Image | None, source: Pictures, entry: Entry, reduced: Image.Image | None = None
    ) -> Prepared:
        """What is done for one picture alone; a large one becomes small here.

        Args:
            reduced: what ``reduced`` gave for it, if that is at hand.
        """
        if self.feature is not None:
            return torch.from_numpy(source.features(self.feature, entry))
        if image is None:
            raise PictureError("there is no picture, only features")
        if isinstance(self._input, PixelInput):
            return torch.from_numpy(self._input.resize(image, reduced))
        if isinstance(self._input, BackboneInput):
            return torch.from_numpy(self._input.pixels.resize(image, reduced))
        return image

    @torch.no_grad()
    def encode(self, prepared: Sequence[Prepared]) -> Encoded:
        """Encode a batch; encodings are on the host, in float32."""
        given = self._input.finish(self._batch(prepared).to(self.device))
        found = self.matcher.encode_images(given)
        parts = None if found.parts is None else found.parts.float().cpu()
        return Encoded(found.vectors.float().cpu(), parts, None if found.mask is None else found.mask.cpu())

    def _batch(self, prepared: Sequence[Prepared]) -> Tensor:
        if isinstance(prepared[0], Tensor):
            rows = torch.stack([row for row in prepared if isinstance(row, Tensor)])
            return self._input.features(rows.to(self.device)) if isinstance(self._input, BackboneInput) else rows
        return self._input.images([image for image in prepared if isinstance(image, Image.Image)])

    @torch.no_grad()
    def dim(self) -> int:
        """Size of the vectors, found by encoding a text."""
        words, mask = self.stored.inputs.texts.texts(["a"])
        return int(self.matcher.encode_texts(words.to(self.device), mask.to(self.device)).vectors.shape[1])


def as_bytes(values: Tensor, kind: type[np.generic] = np.float32) -> bytes:
    """Numbers as a table stores them."""
    return values.numpy().astype(kind).tobytes()
