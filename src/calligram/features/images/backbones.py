"""Vision backbones of ``transformers``: one vector and a grid of cells for each image.

``BackboneInput`` uses a frozen backbone as an image input: features of a collection are computed once and stored,
features of a query image are computed on the fly.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from calligram.data.pairing import Visuals
from calligram.data.pictures import worker_threads
from calligram.device import compile_enabled, device_of
from calligram.features.images.pixels import Augment, PixelInput, mean_over_views
from calligram.features.images.resize import decode_batches
from calligram.features.images.stored_input import feature_parts, feature_vectors
from calligram.features.inputs import ImageInput
from calligram.features.store import FeatureStore, content_key
from calligram.features.transformers_models import (
    architecture_config,
    describe_architecture,
    explained_size,
    inference_groups,
    loading_error,
    network_precision,
    quiet_transformers,
    run_with_compiled_layers,
    shapes_of_output,
    transformer_layers,
    without_overflow,
)
from calligram.files import parts_hash
from calligram.hub import look_for_hub
from calligram.progress import Track, silent
from calligram.vectors import tensor_parts

log = logging.getLogger(__name__)

Ints = NDArray[np.int64]

STORE_PART_IMAGES = 512
"""images in one part of the feature store; a kill loses at most one part"""


class BackboneOutput(NamedTuple):
    """Output of a backbone for N images."""

    vectors: Tensor
    """(N, D) vector of the whole image"""
    grid: Tensor
    """(N, D, h, w) last feature map; its cells divide the image evenly"""


class Backbone(nn.Module):
    """Any vision model that ``transformers`` loads: CNNs, ViT, DINOv2, the image towers of CLIP and SigLIP."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._training_step: list[Any] = []  # the compiled model, inside a list: it is no sub-module
        self._compiled_shape: torch.Size | None = None
        self._compiles = True  # False after a failure
        self._patch_dropout = 0.0
        self._kept: Tensor | None = None  # (N, K) places of the patches that are kept in this step

    @classmethod
    def load(cls, name: str) -> Backbone:
        """Load trained weights from a folder or by a hub name, in float32."""
        from transformers import AutoConfig

        look_for_hub(name)
        try:
            config = AutoConfig.from_pretrained(name)
            with quiet_transformers():
                model = _vision_model_class(config).from_pretrained(name, dtype=torch.float32)
        except (OSError, ValueError, KeyError) as error:
            raise loading_error("backbone", name, error, "a vision model") from error
        return cls(without_overflow(model, name))

    @classmethod
    def from_description(cls, description: str) -> Backbone:
        """Build the architecture of a ``description`` with random weights."""
        config = architecture_config(description)
        kind = _vision_model_class(config)
        return cls(kind.from_config(config) if hasattr(kind, "from_config") else kind(config))

    @property
    def description(self) -> str:
        """The architecture as JSON."""
        return describe_architecture(self.model.config)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of architecture and weights."""
        return parts_hash(chain([self.description.encode()], tensor_parts(self.state_dict())), 12)

    def save(self, folder: Path) -> None:
        """Write the model in the format that ``load`` reads."""
        with quiet_transformers():
            self.model.save_pretrained(folder)  # type: ignore[operator]

    @property
    def dim(self) -> int:
        """Dimension D of the vector and of the grid cells."""
        size = int(getattr(self.model.config, "image_size", None) or 224)
        return int(shapes_of_output(self, torch.zeros(1, 3, size, size)).vectors.shape[1])

    @property
    def size(self) -> int:
        """Dimension of vectors and parts, as every image tower has it."""
        return self.dim

    def vectors(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Vectors (N, D) of pixels (N, 3, H, W), or the mean over their views (N, V, 3, H, W).

        Features may replace pixels: vectors (N, D) or cells (N, R, D) that were computed while the backbone is frozen.
        """
        if images.ndim < 4:
            return feature_vectors(images, mask)
        return mean_over_views(lambda view: self(view).vectors, images)

    def parts(self, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Grid cells (N, h w, D) of pixels, or of an image with its mirror image, and their mask.

        Features may replace pixels, as in ``vectors``.
        """
        if images.ndim < 4:
            return feature_parts(images, mask)
        cells = grid_cells(self, images)
        return cells, cells.new_ones(cells.shape[:2], dtype=torch.bool) if mask is None else mask

    def drop_patches(self, share: float) -> None:
        """Leave out a random share of the patches of each training image of a Vision Transformer (Li et al., 2023).

        A training step then costs less, and the network sees a different part of an image each time. Other networks
        see whole images.
        """
        found = [module for name, module in self.model.named_modules() if name.endswith("embeddings")]
        if not found or not hasattr(self.model.config, "patch_size"):
            log.warning(
                "image.region_dropout=%g has no effect: it leaves out patches of a Vision Transformer, and %s has none",
                share, type(self.model).__name__,
            )  # fmt: skip
            return
        self._patch_dropout = share
        found[0].register_forward_hook(self._keep_patches)

    def _draw_patches(self, pixels: Tensor) -> None:
        """Draw the patches of each image that this step keeps; outside the compiled model, so that seeds hold."""
        self._kept = None
        if self._patch_dropout and self.training:
            config: Any = self.model.config
            patches = int(pixels.shape[-1] // config.patch_size) ** 2
            count = max(1, round((1 - self._patch_dropout) * patches))
            self._kept = torch.rand(len(pixels), patches, device=pixels.device).argsort(1)[:, :count]

    def _keep_patches(self, module: nn.Module, inputs: object, tokens: Tensor) -> Tensor | None:
        """Select the drawn patches of (N, T, D) tokens; class and register tokens come first and stay."""
        if self._kept is None:
            return None
        first = tokens.shape[1] - math.isqrt(tokens.shape[1]) ** 2
        places = self._kept.unsqueeze(-1).expand(-1, -1, tokens.shape[2])
        return torch.cat([tokens[:, :first], tokens[:, first:].gather(1, places)], dim=1)

    def _run(self, pixels: Tensor) -> Any:
        """Return the output of the model; while compilation is on, compiled for training batches of the first shape.

        Other batches, and evaluation, run without compilation: each further shape takes another compilation. Of a
        transformer only the layers are compiled.
        """
        if transformer_layers(self.model):
            return run_with_compiled_layers(self.model, lambda: self.model(pixels), shape=pixels.shape)
        if not (self._compiles and self.training and torch.is_grad_enabled() and compile_enabled()):
            return self.model(pixels)
        if self._compiled_shape is None:
            self._compiled_shape = pixels.shape
        if pixels.shape != self._compiled_shape:
            return self.model(pixels)
        try:
            if not self._training_step or self._training_step[0]._orig_mod is not self.model:
                self._training_step[:] = [torch.compile(self.model, dynamic=False)]
            return self._training_step[0](pixels)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers raise many types
            log.info("the image network cannot be compiled and runs without compilation: %s", error)
            self._compiles = False
            return self.model(pixels)

    def forward(self, pixels: Tensor) -> BackboneOutput:
        """Encode normalised pixels (N, 3, H, W)."""
        if len(groups := inference_groups(self, pixels)) > 1:
            with network_precision(self.model, pixels):  # around all groups: weights are converted once
                return BackboneOutput(*map(torch.cat, zip(*map(self, groups), strict=True)))
        self._draw_patches(pixels)
        with network_precision(self.model, pixels), explained_size(self.model, pixels):
            output = self._run(pixels)
        states, pooled = output.last_hidden_state, getattr(output, "pooler_output", None)
        if not torch.is_grad_enabled():
            states, pooled = states.float(), None if pooled is None else pooled.float()
        if states.ndim == 4:
            return BackboneOutput(states.mean((2, 3)) if pooled is None else pooled.flatten(1), states)
        side = math.isqrt(states.shape[1])
        count = side * side if self._kept is None else self._kept.shape[1]
        cells = states[:, -count:].transpose(1, 2)  # class and register tokens come before the patches
        cells = cells.reshape(*cells.shape[:2], side, side) if self._kept is None else cells.unsqueeze(2)
        return BackboneOutput(pooled if pooled is not None else states[:, 0], cells)


def grid_cells(backbone: nn.Module, images: Tensor) -> Tensor:
    """Grid cells (N, h w, D) of images (N, 3, H, W), row by row, or of images with their mirror images."""
    return cells_over_views(lambda view: backbone(view).grid, images)


def cells_over_views(grid_of: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Cells (N, h w, D), row by row, from a function that maps images (N, 3, H, W) to feature maps (N, D, h, w).

    For images with their mirror images, (N, 2, 3, H, W), a cell is the mean of the two cells at the same position of
    the original image.
    """
    if images.ndim == 4:
        return grid_of(images).flatten(2).transpose(1, 2)
    if images.shape[1] != 2:
        raise ValueError(f"grid cells need one view or two (the image and its mirror image), got {images.shape[1]}")
    if torch.compiler.is_exporting():  # as in ``mean_over_views``
        both = grid_of(images.flatten(0, 1))
        one, two = both.view(-1, 2, *both.shape[1:]).unbind(1)
    else:
        one, two = grid_of(images[:, 0]), grid_of(images[:, 1])
    return ((one + two.flip(-1)) / 2).flatten(2).transpose(1, 2)


def _vision_model_class(config: Any) -> Any:
    """Return the class of the image tower of a dual encoder, or ``AutoModel`` for other models."""
    import transformers

    if hasattr(config, "vision_config"):
        kind = getattr(transformers, type(config.vision_config).__name__.replace("Config", "Model"), None)
        if kind is not None:
            return kind
    return transformers.AutoModel


def pixel_input(name: str, size: int | None = None, fit: str = "squash") -> PixelInput:
    """Return the pixel input that a backbone expects, from its ``preprocessor_config.json``.

    Without that file, size 224 and the mean and standard deviation of ImageNet are used.
    """
    content: dict[str, Any] = {}
    file = Path(name) / "preprocessor_config.json"
    if file.is_file():
        content = json.loads(file.read_text(encoding="utf-8"))
    elif not Path(name).exists():
        from transformers import AutoImageProcessor

        look_for_hub(name)
        try:
            content = AutoImageProcessor.from_pretrained(name).to_dict()
        except (OSError, ValueError, ImportError):
            content = {}
    size_entry = content.get("crop_size") or content.get("size") or {}
    side = size_entry.get("height") or size_entry.get("shortest_edge") if isinstance(size_entry, dict) else size_entry
    return PixelInput(
        size or int(side or 224),
        "crop" if fit == "crop" else "squash",
        tuple(content.get("image_mean") or (0.485, 0.456, 0.406)),
        tuple(content.get("image_std") or (0.229, 0.224, 0.225)),
    )


@dataclass(frozen=True)
class BackboneInput(ImageInput):
    """Image input from a frozen backbone: its vector, or its grid of cells."""

    kind: ClassVar[str] = "backbone"

    backbone: Backbone = field(repr=False, compare=False)
    pixels: PixelInput
    source: str
    """folder or hub name of the backbone, for information"""
    parts: Literal["vector", "grid"] = "vector"
    batch: int = 64

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the backbone's weights into ``folder``, so that a run needs no other file."""
        self.backbone.save(folder / "backbone")
        return {"pixels": asdict(self.pixels), "source": self.source, "parts": self.parts}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> BackboneInput:
        """Read what ``save`` wrote."""
        backbone = Backbone.load(str(folder / "backbone")).eval()
        return cls(backbone, PixelInput.read(folder, content["pixels"]), content["source"], content["parts"])

    @property
    def pixel_input(self) -> PixelInput:
        """Resizes images for the backbone."""
        return self.pixels

    @property
    def network(self) -> Backbone:
        """The backbone."""
        return self.backbone

    def run_network(self, pixels: Tensor, network: nn.Module | None = None) -> Tensor:
        """Compute vectors (N, D) or cells (N, R, D) of resized images (N, 3, size, size), with gradients."""
        images = self.pixels.finish(pixels)
        backbone = self.backbone if network is None else network
        if self.parts == "grid":
            return grid_cells(backbone, images)
        return mean_over_views(lambda view: backbone(view).vectors, images)

    def part_boxes(self, size: tuple[int, int], count: int) -> NDArray[np.float32] | None:
        """Return the boxes of the grid cells; None if the image has one vector."""
        return self.pixels.part_boxes(size, count) if self.parts == "grid" else None

    def load(self, visuals: Visuals, track: Track = silent) -> BackboneRows:
        """Compute features that the collection's store lacks, and read from the store."""
        store = FeatureStore(visuals.pictures.cache, self._store_description())
        return BackboneRows(store, self.fill(store, visuals, track))

    def _store_description(self) -> dict[str, object]:
        pixels = {**asdict(self.pixels), "jpeg": "reduced"}
        return {"backbone": self.backbone.fingerprint, "pixels": pixels, "parts": self.parts}

    def fill(self, store: FeatureStore, visuals: Visuals, track: Track) -> list[str]:
        """Add missing features to a store; return the key of each image."""
        with worker_threads() as pool:
            rows = visuals.rows.tolist()
            keys = list(pool.map(lambda row: content_key(visuals.pictures.read(row)), rows))
        if any(key not in store for key in keys):
            with store.fill():
                missing = {key: row for key, row in zip(keys, rows, strict=True) if key not in store}
                self._add_features(store, visuals, list(missing.items()), track)
        return keys

    def _add_features(
        self, store: FeatureStore, visuals: Visuals, todo: Sequence[tuple[str, int]], track: Track
    ) -> None:
        """Compute the features of images and add them in parts."""
        pending: list[tuple[str, NDArray[np.float16]]] = []
        for key, row in track(self._extract_in_order(visuals, todo), "extracting features", len(todo)):
            pending.append((key, row))
            if len(pending) == STORE_PART_IMAGES:
                store.append([k for k, _ in pending], np.stack([r for _, r in pending]))
                pending.clear()
        if pending:
            store.append([k for k, _ in pending], np.stack([r for _, r in pending]))

    def _extract_in_order(
        self, visuals: Visuals, todo: Sequence[tuple[str, int]]
    ) -> Iterator[tuple[str, NDArray[np.float16]]]:
        """Yield features in order; on a GPU, the next batch is decoded while the network runs on the current one."""
        keys = tuple(key for key, _ in todo)
        images = Visuals(keys, visuals.pictures, np.array([row for _, row in todo], dtype=np.int64))
        ahead = device_of(self.backbone).type != "cpu"
        batches = decode_batches(images, self.pixels.size, self.pixels.fit, self.batch, ahead=ahead)
        rows = (row for pixels in batches for row in self.features(torch.from_numpy(pixels)).half().cpu().numpy())
        yield from zip(keys, rows, strict=True)

    @torch.no_grad()
    def features(self, pixels: Tensor) -> Tensor:
        """Compute features of resized images (N, 3, size, size), on the backbone's device."""
        return self.run_network(pixels.to(device_of(self.backbone)), self.backbone.eval())

    def images(self, images: list[Image.Image]) -> Tensor:
        """Compute features of raw images."""
        return self.features(self.pixels.images(images)).cpu()

    def finish(self, rows: Tensor, augment: Augment | None = None) -> Tensor:
        """Convert features to single precision and augment them."""
        return rows.float() if augment is None else augment.features(rows.float())


class BackboneRows:
    """Stored features of a list of images."""

    def __init__(self, store: FeatureStore, keys: list[str]) -> None:
        self._store, self._keys = store, keys

    def __len__(self) -> int:
        return len(self._keys)

    def take(self, rows: Ints) -> Tensor:
        """Return the features of these images, in half precision."""
        return torch.from_numpy(self._store.take([self._keys[r] for r in rows.tolist()]))
