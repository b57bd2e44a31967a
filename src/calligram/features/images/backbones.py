"""Vision models of ``transformers`` as feature extractors: one vector and a grid of parts for each picture."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from calligram.data.pairing import Visuals
from calligram.data.pictures import decode
from calligram.errors import UserError
from calligram.features.images.pixels import Augment, PixelInput, mean_over_views
from calligram.features.store import FeatureStore, content_key
from calligram.features.transformers_models import architecture_config, describe_architecture, quiet_transformers
from calligram.progress import Track, silent


class BackboneOutput(NamedTuple):
    """What a backbone sees in N pictures."""

    vectors: Tensor
    """(N, D) one vector for the whole picture"""
    grid: Tensor
    """(N, D, h, w) the last map; its cells divide the picture evenly"""


class Backbone(nn.Module):
    """Any vision model that ``transformers`` loads: convolutional networks, ViT, DINOv2, towers of CLIP and SigLIP."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @classmethod
    def load(cls, name: str) -> Backbone:
        """From a folder or a hub name, with its trained weights in float32."""
        from transformers import AutoConfig

        try:
            config = AutoConfig.from_pretrained(name)
            with quiet_transformers():
                model = _vision_model_class(config).from_pretrained(name, dtype=torch.float32)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"backbone '{name}' could not be loaded ({str(error).splitlines()[0]}); "
                "give a folder or a hub name of a vision model in transformers format"
            ) from error
        return cls(model)

    @classmethod
    def from_description(cls, description: str) -> Backbone:
        """The same architecture without weights, from what ``description`` gave."""
        config = architecture_config(description)
        kind = _vision_model_class(config)
        return cls(kind.from_config(config) if hasattr(kind, "from_config") else kind(config))

    @property
    def description(self) -> str:
        """The architecture as JSON."""
        return describe_architecture(self.model.config)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of architecture and weights."""
        digest = hashlib.blake2b(self.description.encode(), digest_size=12)
        for name, value in sorted(self.state_dict().items()):
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Write it in the format that ``load`` reads."""
        with quiet_transformers():
            self.model.save_pretrained(folder)  # type: ignore[operator]

    @property
    def dim(self) -> int:
        """D of the vectors and the grid."""
        with torch.no_grad():
            was = self.training
            size = int(getattr(self.model.config, "image_size", None) or 224)
            found = self.eval()(torch.zeros(1, 3, size, size, device=next(self.parameters()).device))
            self.train(was)
        return int(found.vectors.shape[1])

    def forward(self, pixels: Tensor) -> BackboneOutput:
        """Normalised pixels (N, 3, H, W)."""
        output = self.model(pixels)
        states: Tensor = output.last_hidden_state
        pooled = getattr(output, "pooler_output", None)
        if states.ndim == 4:
            vectors = states.mean((2, 3)) if pooled is None else pooled.flatten(1)
            return BackboneOutput(vectors, states)
        side = math.isqrt(states.shape[1])
        first = states.shape[1] - side * side  # class and register tokens stand before the patches
        cells = states[:, first:].transpose(1, 2)
        cells = cells.reshape(*cells.shape[:2], side, side)
        return BackboneOutput(pooled if pooled is not None else states[:, 0], cells)


def grid_cells(backbone: nn.Module, images: Tensor) -> Tensor:
    """The grid's cells (N, h w, D) of pictures (N, 3, H, W), in reading order.

    Of pictures beside their mirror images, (N, 2, 3, H, W), a cell is the mean of the two that show its place.
    """
    grid: Tensor = backbone(images if images.ndim == 4 else images[:, 0]).grid
    if images.ndim == 5:
        if images.shape[1] != 2:
            raise ValueError(f"cells are those of a picture, or also of its mirror image; got {images.shape[1]} views")
        grid = (grid + backbone(images[:, 1]).grid.flip(-1)) / 2
    return grid.flatten(2).transpose(1, 2)


def _vision_model_class(config: Any) -> Any:
    """The class of the vision part: the tower of a dual encoder, the model itself otherwise."""
    import transformers

    if hasattr(config, "vision_config"):
        kind = getattr(transformers, type(config.vision_config).__name__.replace("Config", "Model"), None)
        if kind is not None:
            return kind
    return transformers.AutoModel


def pixel_input(name: str, size: int | None = None, fit: str = "squash") -> PixelInput:
    """The pixels a backbone expects, from the ``preprocessor_config.json`` beside its weights; ImageNet's otherwise."""
    content: dict[str, Any] = {}
    file = Path(name) / "preprocessor_config.json"
    if file.is_file():
        content = json.loads(file.read_text(encoding="utf-8"))
    elif not Path(name).exists():
        from transformers import AutoImageProcessor

        try:
            content = AutoImageProcessor.from_pretrained(name).to_dict()  # type: ignore[no-untyped-call]
        except (OSError, ValueError, ImportError):
            content = {}
    stated = content.get("crop_size") or content.get("size") or {}
    side = stated.get("height") or stated.get("shortest_edge") if isinstance(stated, dict) else stated
    return PixelInput(
        size or int(side or 224),
        "crop" if fit == "crop" else "squash",
        tuple(content.get("image_mean") or (0.485, 0.456, 0.406)),
        tuple(content.get("image_std") or (0.229, 0.224, 0.225)),
    )


# A frozen backbone's features as model input, computed once for a collection and on the fly for a query.

Ints = NDArray[np.int64]
STORE_PART_IMAGES = 512
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
                if len(waiting) == STORE_PART_IMAGES:
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
        return self.extract(self.backbone.eval(), self.pixels.finish(pixels.to(device)))

    def extract(self, backbone: Backbone, images: Tensor) -> Tensor:
        """What is taken of finished pictures, or of views of them: (N, D), or cells (N, R, D)."""
        return (
            mean_over_views(lambda view: backbone(view).vectors, images)
            if self.parts == "vector"
            else grid_cells(backbone, images)
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
