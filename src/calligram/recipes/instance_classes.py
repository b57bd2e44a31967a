"""Settings of the instance loss's classifier, and the classes it tells apart."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.features.pixels import PixelInput
from calligram.losses.instance import CHUNK
from calligram.models.matcher import Matcher, unit
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
    start: Annotated[
        Literal["random", "images"], "what classes start as: random, or the vectors of their images at the start"
    ] = "random"
    chunk: Annotated[int, "classes whose logits are held at a time; 0 for all", (0, 1000000000)] = CHUNK


def instance_classes(settings: ClassifierSettings, pairing: Pairing, sides: Sides, seed: int = 0) -> Classes:
    """A class for each group of images and texts, or for each cluster of images.

    Groups are those of ``pairing``, whose texts are still one for each caption: where texts that read the same have
    been joined, as those of ``sides.train``, they would chain images into one group that show different things.
    """
    if not settings.clusters:
        return Classes.of(sides.train.matches, pairing.matches.groups()[0])
    features = image_features(sides, "classifier.clusters")
    if settings.clusters > len(features):
        raise UserError(f"classifier.clusters={settings.clusters} is more than the {len(features)} training images")
    return Classes.of(sides.train.matches, pseudo_classes(features.numpy(), settings.clusters, seed))


def image_features(sides: Sides, wanted_by: str) -> Tensor:
    """Features (N, D) of all training images before anything is trained."""
    inputs = sides.frozen_inputs().images
    if isinstance(inputs, PixelInput):
        raise UserError(
            f"{wanted_by} needs image features: give image.backbone= with a vision model, or image.features="
        )
    rows = inputs.load(sides.train.visuals, sides.around.track)
    features = inputs.finish(rows.take(np.arange(len(rows))))
    return features if features.ndim == 2 else features.mean(1)


def classifier(
    settings: ClassifierSettings,
    sides: Sides,
    matcher: Matcher,
    classes: Classes,
    weights: tuple[float, float] = (1.0, 1.0),
) -> InstanceObjective:
    """The instance loss with its classifier at the start.

    With ``start=images`` every class starts as the mean vector of its images, less the mean of all, at length one.
    Ours, not the paper's: texts are then drawn to where their images are from the first step on, instead of to places
    that have yet to be learnt, which takes tens of epochs since a class comes up only a few times in each.
    """
    count = int(max(classes.images.max(), classes.texts.max())) + 1
    made = InstanceObjective(
        matcher.vector_size, count, weights=weights, dropout=settings.dropout, scale=settings.scale,
        chunk=settings.chunk or None,
    )  # fmt: skip
    if settings.start == "images":
        with torch.no_grad():
            features = image_features(sides, "classifier.start=images")
            vectors = copy.deepcopy(matcher).train().encode_images(features).vectors
            of_class = torch.zeros_like(made.classes)
            of_class.index_add_(0, torch.from_numpy(classes.images), unit(vectors - vectors.mean(0)))
            made.classes.copy_(unit(of_class))
    return made
