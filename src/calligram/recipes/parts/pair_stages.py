"""Batches and stages of recipes that train on image-caption pairs, and the classifier of the instance loss."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.features.inputs import Inputs
from calligram.losses.instance import CLASSES_PER_CHUNK
from calligram.models.matcher import Matcher
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.settings import CandidateSettings, Optimisation
from calligram.recipes.parts.towers import ImageSettings, TextSettings, Towers
from calligram.training.batches.batch import Batches
from calligram.training.batches.pair_sampler import PairSampler
from calligram.training.loop import BatchSource, Stage
from calligram.training.objectives.objective import InfoNCEObjective, JointObjective, Objective, RankingObjective
from calligram.vectors import unit_length

if TYPE_CHECKING:
    from calligram.training.objectives.instance import ClassLabels, InstanceObjective

WeightedObjectives = tuple[tuple[float, Objective], ...]
"""objectives with their weights"""


class PairSettings(Protocol):
    """The settings that ``pair_batches`` uses."""

    @property
    def image(self) -> ImageSettings:
        """Settings of the image tower, with augmentation."""

    @property
    def text(self) -> TextSettings:
        """Settings of the text tower, with word dropout."""

    @property
    def ignore_also_true(self) -> bool:
        """Whether pairs that are known to be true are left out as negatives."""

    def sampler(self, matches: Matches) -> PairSampler:
        """Return the sampler that puts pairs into batches."""


def pair_batches(
    settings: PairSettings,
    pairing: Pairing,
    inputs: Inputs,
    context: RunContext,
    *,
    sampler: PairSampler | None = None,
    classes: ClassLabels | None = None,
) -> Batches:
    """Return the batches of a pairing.

    Args:
        sampler: replaces the sampler of the settings.
        classes: class of each image and text, for the instance loss.
    """
    return Batches(
        pairing,
        inputs,
        settings.sampler(pairing.matches) if sampler is None else sampler,
        augment=settings.image.augment,
        word_dropout=settings.text.effective_word_dropout,
        device=context.device,
        processes=context.processes,
        ignore_also_true=settings.ignore_also_true,
        classes=classes,
        track=context.track,
    )


@dataclass(frozen=True)
class PairLoss:
    """A loss over the scores of a batch, and its warm-up."""

    kind: Literal["ranking", "infonce"]
    margin: float
    top_k: int | None
    """number of hardest negatives per anchor in the ranking loss"""
    warmup_epochs: int
    """number of first epochs of the ranking loss, with all negatives of a batch"""
    temperature: float
    warmup: Literal["ranking", "infonce"] = "ranking"
    """loss of the warm-up; with the hardest negatives from the start, all scores collapse to one value"""
    candidates: CandidateSettings = CandidateSettings()  # noqa: RUF009  frozen
    """which pairs of a batch are scored, and the weight of the loss over vectors"""


def plan_pair_stages(
    loss: PairLoss,
    epochs: int,
    batches: BatchSource,
    optim: Optimisation,
    lr: float,
    frozen: tuple[str, ...] = (),
    extra: WeightedObjectives = (),
) -> tuple[Stage, ...]:
    """Return one stage, or a warm-up stage with all negatives and a stage with the hardest ones.

    Args:
        extra: further objectives with their weights, used in both stages.
    """

    def stage(name: str, epochs: int, objective: Objective) -> Stage:
        objective = loss.candidates.with_candidates(objective)
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


# The instance loss: its classes and its classifier (dual-path, Eqs. 5-8).


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
