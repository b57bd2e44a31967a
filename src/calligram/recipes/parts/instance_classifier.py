"""The classifier of the instance loss: its settings, its classes and its initial weights (dual-path, Eqs. 5-8)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.losses.instance import CLASSES_PER_CHUNK
from calligram.models.matcher import Matcher
from calligram.recipes.parts.towers import Towers
from calligram.vectors import unit_length

if TYPE_CHECKING:
    from calligram.training.objectives.instance import ClassLabels, InstanceObjective


@dataclass(frozen=True)
class ClassifierSettings:
    """The classifier of images and texts by their group (dual-path, Eqs. 5-8)."""

    dropout: Annotated[float, "dropout rate of vectors before the classifier", (0, 0.99)] = 0.0
    scale: Annotated[
        float, "factor on cosines that are classified; 0 for inner products, as in the paper", (0, 1000)
    ] = 0.0
    clusters: Annotated[
        int, "number of classes made by K-means of image features; 0 for one class per group", (0, 1000000)
    ] = 0
    init: Annotated[
        Literal["random", "images"],
        "initial weights of classes: random, or the vectors of their images before training (images)",
    ] = "random"
    chunk: Annotated[int, "number of classes whose logits are computed at once; 0 for all", (0, 1000000000)] = (
        CLASSES_PER_CHUNK
    )


def group_classes(settings: ClassifierSettings, pairing: Pairing, towers: Towers, seed: int = 0) -> ClassLabels:
    """Return one class per group of images and texts, or per cluster of images.

    Args:
        pairing: with one text per caption. In ``towers.train`` equal texts are joined, and a shared text would join
            the groups of images that show different things.
    """
    from calligram.training.objectives.instance import ClassLabels, pseudo_classes

    if not settings.clusters:
        return ClassLabels.of(towers.train.matches, pairing.matches.groups()[0])
    features = image_features(towers, "classifier.clusters")
    if settings.clusters > len(features):
        raise UserError(f"classifier.clusters={settings.clusters} is more than the {len(features)} training images")
    return ClassLabels.of(towers.train.matches, pseudo_classes(features.numpy(), settings.clusters, seed))


def image_features(towers: Towers, setting: str) -> Tensor:
    """Return features (N, D) of all training images before training.

    Args:
        setting: the setting that needs them, for the error message.
    """
    from calligram.features.images.pixels import PixelInput

    inputs = towers.frozen_inputs().images
    if isinstance(inputs, PixelInput):
        raise UserError(f"{setting} needs image features: give image.backbone= with a vision model, or image.features=")
    rows = inputs.load(towers.train.visuals, towers.context.track)
    features = inputs.finish(rows.take(np.arange(len(rows))))
    return features if features.ndim == 2 else features.mean(1)


def classifier(
    settings: ClassifierSettings,
    towers: Towers,
    matcher: Matcher,
    classes: ClassLabels,
    weights: tuple[float, float] = (1.0, 1.0),
) -> InstanceObjective:
    """Return the instance loss with its initial classifier.

    With ``init=images`` the weight vector of a class is the mean vector of its images, minus the mean of all images, at
    unit length. This is not in the paper. Texts are then trained towards their images from the first step. Random
    classes need tens of epochs first, since each class occurs only a few times per epoch.
    """
    from calligram.training.objectives.instance import InstanceObjective

    count = int(max(classes.images.max(), classes.texts.max())) + 1
    made = InstanceObjective(
        matcher.vector_size, count, weights=weights, dropout=settings.dropout, scale=settings.scale,
        chunk=settings.chunk or None,
    )  # fmt: skip
    if settings.init == "images":
        with torch.no_grad():
            features = image_features(towers, "classifier.init=images")
            vectors = copy.deepcopy(matcher).train().encode_images(features).vectors
            of_class = torch.zeros_like(made.classes)
            of_class.index_add_(0, torch.from_numpy(classes.images), unit_length(vectors - vectors.mean(0)))
            made.classes.copy_(unit_length(of_class))
    return made
