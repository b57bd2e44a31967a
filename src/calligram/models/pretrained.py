"""Dual encoders of ``transformers``, such as CLIP and SigLIP, as matchers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calligram.errors import UserError
from calligram.features.images.backbones import pixel_input
from calligram.features.images.pixels import PixelInput, mean_over_views
from calligram.features.inputs import Inputs
from calligram.features.texts.wordpieces import WordPieces
from calligram.features.transformers_models import build_model, describe_architecture, load_model, network_precision
from calligram.models.matcher import EmbeddingMatcher, Encoded

FULL_LENGTH_MODEL_TYPES = frozenset(("siglip",))
"""model types that are trained on texts padded to full length without a mask, with the vector at the last position"""


@dataclass(frozen=True)
class PretrainedSettings:
    """Architecture; the weights come from a file."""

    architecture: str
    """configuration of the model as JSON"""
    text_length: int = 0
    """number of word pieces to which texts are padded, without a mask; 0 for no padding beyond the batch"""
    pad: int = 0
    """index of the padding piece"""


class Pretrained(EmbeddingMatcher):
    """Cosine of the vectors of a dual encoder of transformers: CLIP, SigLIP and others.

    Departs from their own score, which is scale * cosine + bias: the ranking is the same, and objectives have their own
    temperature, so scale and bias are left out.
    """

    settings: PretrainedSettings

    def __init__(self, settings: PretrainedSettings, model: nn.Module | None = None) -> None:
        """Args:
        model: model with trained weights; None builds one with random weights.
        """
        super().__init__()
        self.settings = settings
        self.model: Any = _without_scale(build_model(settings.architecture) if model is None else model)

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode normalised pixels (N, 3, H, W), or views of them (N, V, 3, H, W)."""
        return Encoded(mean_over_views(self._from_pixels, images))

    def _from_pixels(self, images: Tensor) -> Tensor:
        with network_precision(self._tower("vision_model"), images):
            return _vectors(self.model.get_image_features(pixel_values=images))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode word piece indices (N, W)."""
        if self.settings.text_length:
            texts, mask = self._pad_to_length(texts, mask), None
        elif mask is not None:
            mask = mask.long()
        with network_precision(self._tower("text_model"), texts):
            return Encoded(_vectors(self.model.get_text_features(input_ids=texts, attention_mask=mask)))

    def _tower(self, name: str) -> Any:
        """One of the two networks; the whole model if it has another name for it."""
        return getattr(self.model, name, self.model)

    def _pad_to_length(self, texts: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            texts = texts.masked_fill(~mask, self.settings.pad)
        return F.pad(texts, (0, self.settings.text_length - texts.shape[1]), value=self.settings.pad)


def load_pretrained(name: str, pad: int) -> tuple[Pretrained, float]:
    """Load a dual encoder from a folder or by hub name, and the temperature it was trained with.

    Args:
        pad: index of the tokenizer's padding piece.
    """
    from transformers import AutoModel

    model = load_model(AutoModel, name, what="dual encoder")
    if not (hasattr(model, "get_image_features") and hasattr(model, "get_text_features")):
        raise UserError(
            f"'{name}' is a {model.config.model_type} model and not a dual encoder: it has no image vectors and no "
            "text vectors; these types work: clip, siglip, align, altclip, chinese_clip, vision-text-dual-encoder"
        )
    scale = getattr(model, "logit_scale", None)
    temperature = 0.07 if scale is None else math.exp(-float(scale.detach()))
    length = max_text_pieces(model.config) if model.config.model_type in FULL_LENGTH_MODEL_TYPES else 0
    return Pretrained(PretrainedSettings(describe_architecture(model.config), length, pad), model), temperature


def load_dual_encoder(
    name: str, *, fit: str = "own", views: Literal["one", "flip", "ten"] = "one", max_pieces: int = 77
) -> tuple[Pretrained, Inputs, float]:
    """Load a dual encoder with the inputs it was trained on, and its temperature.

    Args:
        fit: how images are resized: ``squash``, ``crop``, or ``own`` for the way of the model.
        views: views of an image outside training.
        max_pieces: longer texts are truncated; the model may have a lower limit.
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
        processor = AutoImageProcessor.from_pretrained(name)
    except (OSError, ValueError, ImportError):
        return False
    return bool(getattr(processor, "do_center_crop", False))


def max_text_pieces(config: Any) -> int:
    """Longest text that a dual encoder accepts, in word pieces."""
    return int(getattr(config.text_config, "max_position_embeddings", None) or 64)


def _without_scale(model: nn.Module) -> nn.Module:
    for name in ("logit_scale", "logit_bias"):
        if hasattr(model, name):
            delattr(model, name)
    return model


def _vectors(found: Any) -> Tensor:
    # Some versions of transformers return the vectors, others an output object.
    vectors: Tensor = found if isinstance(found, Tensor) else found.pooler_output
    return vectors if torch.is_grad_enabled() else vectors.float()
