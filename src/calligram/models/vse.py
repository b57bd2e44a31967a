"""VSE: an image tower and a text tower with a joint embedding space (vse++, dual-path)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from calligram.features.images.pixels import mean_over_views
from calligram.models.layers.networks import HeadKind, ProjectionHead
from calligram.models.layers.towers import TwoTowerSettings, image_tower, joint_projection, text_tower
from calligram.models.matcher import EmbeddingMatcher, Encoded


@dataclass(frozen=True)
class VSESettings(TwoTowerSettings):
    """Settings of both towers and of the projection."""

    head: Annotated[HeadKind, "layers from image or text CNN features to the joint space, for vse and dual-path"] = (
        "linear"
    )


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
        self.image = image_tower(settings.image)
        self.project = _projection(self.image.size, settings)
        self.text = text_tower(settings.text, settings.dim, settings.head)

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode pixels (N, 3, H, W), views of them (N, V, 3, H, W), or features (N, D) or (N, R, D).

        The vectors of views are averaged after the projection.
        """
        if images.ndim > 3:
            return Encoded(mean_over_views(lambda view: self.project(self.image.vectors(view)), images))
        return Encoded(self.project(self.image.vectors(images, mask)))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode word indices (N, W), states (N, W, D) or vectors (N, D)."""
        return Encoded(self.text.vectors(texts, mask))


def _projection(features: int, settings: VSESettings) -> nn.Module:
    if settings.head != "linear":
        return ProjectionHead(features, settings.dim, settings.head)
    return joint_projection(features, settings.dim)
