"""The classifier of the instance loss: its classes and its initial weights (dual-path, Eqs. 5-8)."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.recipes.parts.terms import Instance, TermContext
from calligram.recipes.parts.tower_settings import Towers
from calligram.vectors import unit_length

if TYPE_CHECKING:
    from calligram.training.objectives.instance import ClassLabels, InstanceObjective


def group_classes(
    settings: Instance, captions: Pairing, train: Pairing, towers: Towers | None, seed: int = 0
) -> ClassLabels:
    """Return one class per group of images and texts, or per cluster of images.

    Args:
        captions: with one text per caption. In ``train`` equal texts are joined, and a shared text would join the
            groups of images that show different things.
    """
    from calligram.training.objectives.instance import ClassLabels, pseudo_classes

    if not settings.clusters:
        return ClassLabels.of(train.matches, captions.matches.groups()[0])
    features = image_features(towers, train, "instance.clusters")
    if settings.clusters > len(features):
        raise UserError(f"instance.clusters={settings.clusters} is more than the {len(features)} training images")
    return ClassLabels.of(train.matches, pseudo_classes(features.numpy(), settings.clusters, seed))


def image_features(towers: Towers | None, train: Pairing, setting: str) -> Tensor:
    """Return features (N, D) of all training images before training.

    Args:
        setting: the setting that needs them, for the error message.
    """
    if towers is None or not (towers.image.backbone or towers.image.features):
        raise UserError(f"{setting} needs image features: give image.backbone= with a vision model, or image.features=")
    inputs = towers.frozen_inputs().images
    rows = inputs.load(train.visuals, towers.context.track)
    features = inputs.finish(rows.take(np.arange(len(rows))))
    return features if features.ndim == 2 else features.mean(1)


def classifier(settings: Instance, context: TermContext) -> InstanceObjective:
    """Return the instance loss with its initial classifier.

    With ``init=images`` the weight vector of a class is the mean vector of its images, minus the mean of all images, at
    unit length. This is not in the paper. Texts are then trained towards their images from the first step. Random
    classes need tens of epochs first, since each class occurs only a few times per epoch.
    """
    from calligram.training.objectives.instance import InstanceObjective

    matcher, classes = context.matcher, context.classes
    if classes is None:
        raise ValueError("the instance loss needs the classes of images and texts")
    count = int(max(classes.images.max(), classes.texts.max())) + 1
    made = InstanceObjective(
        matcher.vector_size, count, weights=settings.weights, dropout=settings.dropout, scale=settings.scale,
    )  # fmt: skip
    if settings.init == "images":
        with torch.no_grad():
            features = image_features(context.towers, context.train, "instance.init=images")
            vectors = copy.deepcopy(matcher).train().encode_images(features).vectors
            of_class = torch.zeros_like(made.classes)
            of_class.index_add_(0, torch.from_numpy(classes.images), unit_length(vectors - vectors.mean(0)))
            made.classes.copy_(unit_length(of_class))
    return made
