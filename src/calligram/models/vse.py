"""VSE: an image tower and a text tower with a joint embedding space (vse++, dual-path)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from calligram.features.images.backbones import Backbone, BackboneOutput
from calligram.features.images.pixels import mean_over_views
from calligram.features.images.stored_input import real_parts
from calligram.models.layers.networks import HeadKind, ProjectionHead, RecurrentText, SmallCNN
from calligram.models.layers.part_towers import BertText, PooledText
from calligram.models.layers.text_cnn import TextCNN, TextCNNSettings
from calligram.models.matcher import EmbeddingMatcher, Encoded


@dataclass(frozen=True)
class VSESettings:
    """Settings of both towers."""

    vocabulary: int
    """number of words, including special words"""
    dim: int = 1024
    """size of the joint space"""
    image: Literal["cnn", "features", "backbone"] = "cnn"
    """a small CNN on pixels, a linear map of stored features, or a trained backbone"""
    backbone: str = ""
    """architecture of the backbone, from ``Backbone.description``"""
    feature_dim: int = 2048
    """size of stored features"""
    channels: tuple[int, ...] = (32, 64, 128, 256)
    """channels of the CNN's stem and blocks"""
    head: HeadKind = "linear"
    """projection of image features, and of text CNN features, to the joint space"""
    text: Literal["gru", "cnn", "bert", "states"] = "gru"
    """word embeddings with a GRU or a CNN, a trained BERT-like encoder, or a linear map of a frozen encoder's states"""
    cnn: str = ""
    """architecture of the text CNN, from ``TextCNNSettings.description``"""
    encoder: str = ""
    """architecture of the text encoder, from ``TextEncoder.description``"""
    state_dim: int = 0
    """size of the states of the frozen encoder"""
    word_dim: int = 300
    hidden: int = 1024
    """size of the GRU's state"""
    bidirectional: bool = False
    pooling: Literal["last", "mean", "max", "cls"] = "last"
    """how the states of a text become one vector"""
    dropout: float = 0.0
    """share of word embedding entries set to zero in training"""


class VSE(EmbeddingMatcher):
    """Cosine of an image vector and a text vector.

    With a GRU and a linear head this is vse++: Xavier-uniform weights, zero bias. With a text CNN, a trained backbone
    and a head of two layers this is the network of dual-path, whose image descriptor is Eq. 1 (dual-path, Eqs. 1 and
    3). Features with several parts per image are averaged first.
    """

    settings: VSESettings

    def __init__(self, settings: VSESettings) -> None:
        super().__init__()
        self.settings = settings
        self.image, features = _image_network(settings)
        self.project = _projection(features, settings)
        self.text = _text_network(settings)

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode pixels (N, 3, H, W), views of them (N, V, 3, H, W), or features (N, D) or (N, R, D).

        With a backbone, features may replace pixels: the output of the backbone, precomputed while it is frozen.
        """
        if self.settings.image != "features" and images.ndim > 2:
            return Encoded(mean_over_views(self._from_pixels, images))
        if images.ndim == 3:
            real = (real_parts(images) if mask is None else mask).to(images.dtype)
            images = (images * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        return Encoded(self.project(images))

    def _from_pixels(self, images: Tensor) -> Tensor:
        output = self.image(images)
        return self.project(output.vectors if isinstance(output, BackboneOutput) else output)  # type: ignore[no-any-return]

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode word indices (N, W), or states (N, W, D)."""
        mask = torch.ones(texts.shape[:2], dtype=torch.bool, device=texts.device) if mask is None else mask
        return Encoded(self.text(texts, mask))


def _image_network(settings: VSESettings) -> tuple[nn.Module, int]:
    """The network before the projection, and its output size."""
    if settings.image == "cnn":
        network = SmallCNN(settings.channels)
        return network, network.dim
    if settings.image == "backbone":
        backbone = Backbone.from_description(settings.backbone)
        return backbone, backbone.dim
    return nn.Identity(), settings.feature_dim


def _projection(features: int, settings: VSESettings) -> nn.Module:
    if settings.head != "linear":
        return ProjectionHead(features, settings.dim, settings.head)
    linear = nn.Linear(features, settings.dim)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def _text_network(settings: VSESettings) -> nn.Module:
    if settings.text == "cnn":
        return TextCNN(TextCNNSettings.from_description(settings.cnn), settings.dim, settings.head)
    if settings.text == "states":
        return PooledText(settings.state_dim, settings.dim, settings.pooling, settings.dropout)
    if settings.text == "bert":
        return BertText(settings.encoder, settings.dim, settings.pooling, settings.dropout)
    return RecurrentText(
        settings.vocabulary,
        settings.word_dim,
        settings.hidden,
        settings.dim,
        bidirectional=settings.bidirectional,
        pooling=settings.pooling,
        dropout=settings.dropout,
    )
