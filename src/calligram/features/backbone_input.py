"""A frozen backbone's features as model input, computed once for a collection and on the fly for a query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.data.pairing import Visuals
from calligram.data.pictures import decode
from calligram.features.backbones import Backbone, cells_seen
from calligram.features.pixels import Augment, PixelInput, with_views
from calligram.features.store import FeatureStore, content_key
from calligram.progress import Track, silent

Ints = NDArray[np.int64]
PART = 512
"""pictures in a part of the store: what a kill can cost"""


@dataclass(frozen=True)
class BackboneInput:
    """Features of a backbone that is not trained: its vector, or its grid of parts."""

    kind: ClassVar[str] = "backbone"

    backbone: Backbone = field(repr=False, compare=False)
    pixels: PixelInput
    source: str
    """where the backbone came from, for the record"""
    parts: Literal["vector", "grid"] = "vector"
    batch: int = 64

    def save(self, folder: Path) -> dict[str, Any]:
        """The backbone's weights go beside the JSON, so that a run needs nothing else."""
        self.backbone.save(folder / "backbone")
        return {"pixels": asdict(self.pixels), "source": self.source, "parts": self.parts}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> BackboneInput:
        """From what ``save`` wrote."""
        backbone = Backbone.load(str(folder / "backbone")).eval()
        return cls(backbone, PixelInput.read(folder, content["pixels"]), content["source"], content["parts"])

    def load(self, visuals: Visuals, track: Track = silent) -> BackboneRows:
        """Compute what the collection's store lacks, and read from it."""
        store = FeatureStore(visuals.pictures.cache, self._about())
        keys = self.fill(store, visuals, track)
        return BackboneRows(store, keys)

    def _about(self) -> dict[str, object]:
        return {"backbone": self.backbone.fingerprint, "pixels": asdict(self.pixels), "parts": self.parts}

    def fill(self, store: FeatureStore, visuals: Visuals, track: Track) -> list[str]:
        """Add missing features to a store; returns the key of each visual."""
        with ThreadPoolExecutor() as pool:
            rows = visuals.rows.tolist()
            keys = list(pool.map(lambda row: content_key(visuals.pictures.read(row)), rows))
        wanted = {key: row for key, row in zip(keys, rows, strict=True) if key not in store}
        if wanted:
            todo = list(wanted.items())
            waiting: list[tuple[str, NDArray[np.float16]]] = []
            for key, row in track(self._in_order(visuals, todo), "extracting features", len(todo)):
                waiting.append((key, row))
                if len(waiting) == PART:
                    store.append([k for k, _ in waiting], np.stack([r for _, r in waiting]))
                    waiting.clear()
            if waiting:
                store.append([k for k, _ in waiting], np.stack([r for _, r in waiting]))
        return keys

    def _in_order(self, visuals: Visuals, todo: Sequence[tuple[str, int]]) -> Iterator[tuple[str, NDArray[np.float16]]]:
        """Features in order; the next batch is decoded while the network works on this one."""
        chunks = [todo[i : i + self.batch] for i in range(0, len(todo), self.batch)]
        with ThreadPoolExecutor() as decoders, ThreadPoolExecutor(1) as ahead:

            def prepare(chunk: Sequence[tuple[str, int]]) -> Tensor:
                pictures = decoders.map(lambda item: self.pixels.resize(decode(visuals.pictures.read(item[1]))), chunk)
                return torch.from_numpy(np.stack(list(pictures)))

            coming = [ahead.submit(prepare, chunk) for chunk in chunks[:1]]
            for number, chunk in enumerate(chunks):
                pixels = coming.pop().result()
                if number + 1 < len(chunks):
                    coming.append(ahead.submit(prepare, chunks[number + 1]))
                rows = self.features(pixels).half().cpu().numpy()
                yield from zip((key for key, _ in chunk), rows, strict=True)

    @torch.no_grad()
    def features(self, pixels: Tensor) -> Tensor:
        """Features of resized pictures (N, 3, size, size), on the backbone's device."""
        device = next(self.backbone.parameters()).device
        return self.seen(self.backbone.eval(), self.pixels.finish(pixels.to(device)))

    def seen(self, backbone: Backbone, images: Tensor) -> Tensor:
        """What is taken of finished pictures, or of views of them: (N, D), or cells (N, R, D)."""
        return (
            with_views(lambda view: backbone(view).vectors, images)
            if self.parts == "vector"
            else cells_seen(backbone, images)
        )

    def images(self, images: list[Image.Image]) -> Tensor:
        """Features of raw pictures."""
        return self.features(self.pixels.images(images)).cpu()

    def finish(self, rows: Tensor, augment: Augment | None = None) -> Tensor:
        """In single precision."""
        return rows.float() if augment is None else augment.features(rows.float())


class BackboneRows:
    """Stored features of a list of visuals."""

    def __init__(self, store: FeatureStore, keys: list[str]) -> None:
        self._store, self._keys = store, keys

    def __len__(self) -> int:
        return len(self._keys)

    def take(self, rows: Ints) -> Tensor:
        """These images' features in half precision."""
        return torch.from_numpy(self._store.take([self._keys[r] for r in rows.tolist()]))
