"""Vision models of ``transformers`` as feature extractors: one vector and a grid of parts for each picture."""

from __future__ import annotations

import hashlib
import json
import math
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from calligram.errors import UserError
from calligram.features.architectures import describe_architecture, described_architecture, quiet
from calligram.features.pixels import PixelInput


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
            with quiet():
                model = _class_for(config).from_pretrained(name, dtype=torch.float32)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"backbone '{name}' could not be loaded ({str(error).splitlines()[0]}); "
                "give a folder or a hub name of a vision model in transformers format"
            ) from error
        return cls(model)

    @classmethod
    def from_description(cls, description: str) -> Backbone:
        """The same architecture without weights, from what ``description`` gave."""
        config = described_architecture(description)
        kind = _class_for(config)
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
        with quiet():
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


def cells_seen(backbone: nn.Module, images: Tensor) -> Tensor:
    """The grid's cells (N, h w, D) of pictures (N, 3, H, W), in reading order.

    Of pictures beside their mirror images, (N, 2, 3, H, W), a cell is the mean of the two that show its place.
    """
    grid: Tensor = backbone(images if images.ndim == 4 else images[:, 0]).grid
    if images.ndim == 5:
        if images.shape[1] != 2:
            raise ValueError(f"cells are those of a picture, or also of its mirror image; got {images.shape[1]} views")
        grid = (grid + backbone(images[:, 1]).grid.flip(-1)) / 2
    return grid.flatten(2).transpose(1, 2)


def _class_for(config: Any) -> Any:
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
