"""Dual encoders of ``transformers``, such as CLIP and SigLIP, as matchers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from calligram.errors import UserError
from calligram.features.images.backbones import pixel_input
from calligram.features.images.pixels import PixelInput, mean_over_views
from calligram.features.inputs import Inputs
from calligram.features.texts.wordpieces import WordPieces
from calligram.features.transformers_models import build_model, describe_architecture, load_model
from calligram.models.matcher import EmbeddingMatcher, Encoded

FULL_LENGTH_MODEL_TYPES = frozenset(("siglip",))
"""model types that were trained on texts padded to full length without a mask, and read a text's vector off its end"""


@dataclass(frozen=True)
class PretrainedSettings:
    """What is built; weights come from a file."""

    architecture: str
    """the model's configuration as JSON"""
    text_length: int = 0
    """texts are padded to this many pieces and read without a mask; 0 for as long as they are"""
    pad: int = 0
    """number of the piece that pads them"""


class Pretrained(EmbeddingMatcher):
    """Cosine of the vectors of a dual encoder from transformers: CLIP, SigLIP and others.

    Departs from their own score, which is scale * cosine + bias: the order is the same, and objectives have their own
    temperature, so both are left out.
    """

    settings: PretrainedSettings

    def __init__(self, settings: PretrainedSettings, model: nn.Module | None = None) -> None:
        """Args:
        model: with trained weights; built with random ones when not given.
        """
        super().__init__()
        self.settings = settings
        self.model: Any = _without_scale(build_model(settings.architecture) if model is None else model)

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Normalised pixels (N, 3, H, W), or views of them (N, V, 3, H, W)."""
        return Encoded(mean_over_views(self._from_pixels, images))

    def _from_pixels(self, images: Tensor) -> Tensor:
        return _vectors(self.model.get_image_features(pixel_values=images))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Numbers of pieces (N, W)."""
        if self.settings.text_length:
            texts, mask = self._full(texts, mask), None
        elif mask is not None:
            mask = mask.long()
        return Encoded(_vectors(self.model.get_text_features(input_ids=texts, attention_mask=mask)))

    def _full(self, texts: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            texts = texts.masked_fill(~mask, self.settings.pad)
        return F.pad(texts, (0, self.settings.text_length - texts.shape[1]), value=self.settings.pad)


def load_pretrained(name: str, pad: int) -> tuple[Pretrained, float]:
    """A dual encoder of a folder or a hub name, and the temperature it was trained with.

    Args:
        pad: number of its tokenizer's padding piece.
    """
    from transformers import AutoModel

    model = load_model(AutoModel, name, what="dual encoder")
    if not (hasattr(model, "get_image_features") and hasattr(model, "get_text_features")):
        raise UserError(
            f"'{name}' is a {model.config.model_type} model and no dual encoder: it gives no vectors of images "
            "and of texts; known to work: clip, siglip, align, altclip, chinese_clip, vision-text-dual-encoder"
        )
    scale = getattr(model, "logit_scale", None)
    temperature = 0.07 if scale is None else math.exp(-float(scale.detach()))
    length = max_text_pieces(model.config) if model.config.model_type in FULL_LENGTH_MODEL_TYPES else 0
    return Pretrained(PretrainedSettings(describe_architecture(model.config), length, pad), model), temperature


def load_dual_encoder(
    name: str, *, fit: str = "own", views: Literal["one", "flip", "ten"] = "one", max_pieces: int = 77
) -> tuple[Pretrained, Inputs, float]:
    """A dual encoder with the inputs it was trained on, and its temperature.

    Args:
        fit: ``squash`` or ``crop``; ``own`` for the model's own way.
        views: what is seen of a picture outside training.
        max_pieces: longer texts are cut; the model may have a lower limit.
    """
    pieces = WordPieces.load_pretrained(name, max_pieces)
    matcher, temperature = load_pretrained(name, pieces.pad)
    limit = min(pieces.max_pieces, max_text_pieces(matcher.model.config))
    pixels = replace(_own_pixels(name, matcher, fit), views=views)
    return matcher, Inputs(pixels, WordPieces(pieces.tokenizer, limit)), temperature


def _own_pixels(name: str, matcher: Pretrained, fit: str) -> PixelInput:
    size = getattr(matcher.model.config.vision_config, "image_size", None)
    if fit == "own":
        fit = "crop" if _crops(name) else "squash"
    return pixel_input(name, size, fit)


def _crops(name: str) -> bool:
    from transformers import AutoImageProcessor

    try:
        processor = AutoImageProcessor.from_pretrained(name)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, ImportError):
        return False
    return bool(getattr(processor, "do_center_crop", False))


def max_text_pieces(config: Any) -> int:
    """Longest text that a dual encoder reads, in pieces."""
    return int(getattr(config.text_config, "max_position_embeddings", None) or 64)


def _without_scale(model: nn.Module) -> nn.Module:
    for name in ("logit_scale", "logit_bias"):
        if hasattr(model, name):
            delattr(model, name)
    return model


def _vectors(found: Any) -> Tensor:
    # Versions of transformers differ: the vectors themselves, or an output that has them.
    vectors: Tensor = found if isinstance(found, Tensor) else found.pooler_output
    return vectors
