"""Batches and stages of recipes that train a matcher with one loss over pairs."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.losses.instance import CLASSES_PER_CHUNK
from calligram.models.matcher import Matcher
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.settings import Optimisation, StagedSettings
from calligram.recipes.parts.towers import ImageSettings, TextSettings, Towers
from calligram.training.batches.batch import Batches
from calligram.training.batches.pair_sampler import PairSampler
from calligram.training.loop import BatchSource, Stage
from calligram.training.objectives.instance import ClassLabels, InstanceObjective, pseudo_classes
from calligram.training.objectives.objective import InfoNCEObjective, JointObjective, Objective, RankingObjective
from calligram.vectors import unit_length


class PairSettings(Protocol):
    """What batches of images and captions are drawn by."""

    @property
    def image(self) -> ImageSettings:
        """How pictures are changed."""

    @property
    def text(self) -> TextSettings:
        """How many words are hidden."""

    @property
    def ignore_also_true(self) -> bool:
        """Whether pairs known to be true are no negatives."""

    def sampler(self, matches: Matches) -> PairSampler:
        """Which pairs share a batch."""


def pair_batches(
    settings: PairSettings,
    pairing: Pairing,
    inputs: Inputs,
    around: RunContext,
    *,
    sampler: PairSampler | None = None,
    classes: ClassLabels | None = None,
) -> Batches:
    """Batches of a pairing as the settings say.

    Args:
        sampler: in place of the settings' own.
        classes: labels for the instance loss.
    """
    return Batches(
        pairing,
        inputs,
        settings.sampler(pairing.matches) if sampler is None else sampler,
        augment=settings.image.augment,
        word_dropout=settings.text.hidden_words,
        device=around.device,
        processes=around.processes,
        ignore_also_true=settings.ignore_also_true,
        classes=classes,
        track=around.track,
    )


@dataclass(frozen=True)
class PairLoss:
    """A loss over pairs."""

    kind: Literal["ranking", "infonce"]
    margin: float
    top_k: int | None
    """hardest negatives per anchor that count in the ranking loss"""
    warmup_epochs: int
    """first epochs of the ranking loss, with all negatives of a batch"""
    temperature: float
    warmup: Literal["ranking", "infonce"] = "ranking"
    """loss of those epochs: with the hardest negatives, scores that do not tell pairs apart yet fall together"""
    stages: StagedSettings = StagedSettings()  # noqa: RUF009  frozen
    """whether vectors learn on their own, and which pairs are scored"""


def plan_pair_stages(
    loss: PairLoss,
    epochs: int,
    batches: BatchSource,
    optim: Optimisation,
    lr: float,
    frozen: tuple[str, ...] = (),
    extra: tuple[tuple[float, Objective], ...] = (),
) -> tuple[Stage, ...]:
    """One stage, or a warm-up with all negatives before the hardest ones.

    Args:
        extra: further objectives with their weights, the same in both.
    """

    def stage(name: str, epochs: int, objective: Objective) -> Stage:
        objective = loss.stages.staged(objective)
        whole = JointObjective((1.0, objective), *extra) if extra else objective
        return Stage(
            name, epochs, whole, batches, optim.build, lr, optim.part_lr(), frozen, optim.factor(), optim.clip,
            optim.accumulate,
        )  # fmt: skip

    if loss.kind == "infonce":
        return (stage("infonce", epochs, InfoNCEObjective(loss.temperature)),)
    warm = 0 if loss.top_k is None else min(loss.warmup_epochs, epochs)
    hard = RankingObjective(loss.margin, loss.top_k)
    every = InfoNCEObjective(loss.temperature) if loss.warmup == "infonce" else RankingObjective(loss.margin)
    return tuple(
        stage(name, epochs, objective)
        for name, epochs, objective in (("warm-up", warm, every), ("ranking", epochs - warm, hard))
        if epochs
    )


# Settings of the instance loss's classifier, and the classes it tells apart.


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
    chunk: Annotated[int, "classes whose logits are held at a time; 0 for all", (0, 1000000000)] = CLASSES_PER_CHUNK


def group_classes(settings: ClassifierSettings, pairing: Pairing, sides: Towers, seed: int = 0) -> ClassLabels:
    """A class for each group of images and texts, or for each cluster of images.

    Groups are those of ``pairing``, whose texts are still one for each caption: where texts that read the same have
    been joined, as those of ``sides.train``, they would chain images into one group that show different things.
    """
    if not settings.clusters:
        return ClassLabels.of(sides.train.matches, pairing.matches.groups()[0])
    features = image_features(sides, "classifier.clusters")
    if settings.clusters > len(features):
        raise UserError(f"classifier.clusters={settings.clusters} is more than the {len(features)} training images")
    return ClassLabels.of(sides.train.matches, pseudo_classes(features.numpy(), settings.clusters, seed))


def image_features(sides: Towers, wanted_by: str) -> Tensor:
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
    sides: Towers,
    matcher: Matcher,
    classes: ClassLabels,
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
            of_class.index_add_(0, torch.from_numpy(classes.images), unit_length(vectors - vectors.mean(0)))
            made.classes.copy_(unit_length(of_class))
    return made
