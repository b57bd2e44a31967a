"""Settings of the instance loss's classifier, and the classes it tells apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.features.pixels import PixelInput
from calligram.losses.instance import CHUNK
from calligram.recipes.embedding import Sides
from calligram.training.instance import Classes, InstanceObjective, pseudo_classes


@dataclass(frozen=True)
class ClassifierSettings:
    """Classification of images and texts as the group they belong to (dual-path, Eqs. 5-8)."""

    dropout: Annotated[float, "share of a vector's entries set to zero before the classifier", (0, 0.99)] = 0.0
    scale: Annotated[float, "of cosines that are classified; 0 for inner products, the paper's", (0, 1000)] = 0.0
    clusters: Annotated[
        int, "classes by K-means of image features, instead of a class for each group", (0, 1000000)
    ] = 0
    chunk: Annotated[int, "classes whose logits are held at a time; 0 for all", (0, 1000000000)] = CHUNK

    def objective(self, dim: int, classes: int, weights: tuple[float, float] = (1.0, 1.0)) -> InstanceObjective:
        """The loss with its classifier."""
        return InstanceObjective(
            dim, classes, weights=weights, dropout=self.dropout, scale=self.scale, chunk=self.chunk or None
        )


def instance_classes(settings: ClassifierSettings, pairing: Pairing, sides: Sides, seed: int = 0) -> Classes:
    """A class for each group of images and texts, or for each cluster of images.

    Groups are those of ``pairing``, whose texts are still one for each caption: where texts that read the same have
    been joined, as those of ``sides.train``, they would chain images into one group that show different things.
    """
    if not settings.clusters:
        return Classes.of(sides.train.matches, pairing.matches.groups()[0])
    inputs = sides.frozen_inputs().images
    if isinstance(inputs, PixelInput):
        raise UserError(
            "classifier.clusters needs image features: give image.backbone= with a vision model, or image.features="
        )
    count = len(sides.train.visuals)
    if settings.clusters > count:
        raise UserError(f"classifier.clusters={settings.clusters} is more than the {count} training images")
    features = inputs.finish(inputs.load(sides.train.visuals, sides.around.track).take(np.arange(count)))
    whole = features.flatten(1) if features.ndim == 2 else features.mean(1)
    return Classes.of(sides.train.matches, pseudo_classes(whole.numpy(), settings.clusters, seed))
