"""Recipe ``best``: what of all papers together found most, end to end, as one matcher or as several in one run."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Annotated

from calligram.data.collection import Collection
from calligram.data.pairing import Pairing
from calligram.errors import UserError, unknown
from calligram.models import catalog
from calligram.models.ensemble import Ensemble, EnsembleSettings
from calligram.models.matcher import Matcher
from calligram.models.vse import VSE
from calligram.recipes.parts.matchers import FragmentModels, check_fragments, fragment_matcher, fragment_sides
from calligram.recipes.parts.mined_negatives import MinedNegatives, MinedNegativesSettings, Miner
from calligram.recipes.parts.pair_stages import ClassifierSettings, classifier, group_classes, pair_batches
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import (
    Average,
    BatchSize,
    DevDepth,
    Dim,
    LearningRate,
    Optimisation,
    PairedSettings,
    StagedSettings,
    TextsPerImage,
)
from calligram.recipes.parts.towers import ImageSettings, TextSettings, Towers
from calligram.training.batches.mined_negatives import OfflineSampler
from calligram.training.loop import Precision, Stage
from calligram.training.objectives.instance import ClassLabels
from calligram.training.objectives.objective import EnsembleObjective, InfoNCEObjective, JointObjective, Objective
from calligram.training.objectives.offline import OfflineObjective, OfflineTerms

MEMBERS = ("mmca", "vse", "scan", "bfan", "a3vse")


@dataclass(frozen=True)
class OfflineStage:
    """A last stage, with hard negatives that the run mines by its vectors beside those of the batch (aoq, Eq. 5).

    An epoch takes every image once, with one caption. Each pair brings two images and two texts, and as many again
    that these match, so batches are smaller than those before.
    """

    epochs: Annotated[int, "passes over the training images; 0 leaves the stage out", (0, 1000000)] = 0
    batch: BatchSize = 64
    weight: Annotated[float, "of the adaptive quintuplet loss beside the others", (0, 1000)] = 1.0
    lr: LearningRate = 1e-4
    hard: MinedNegativesSettings = field(default_factory=MinedNegativesSettings)


@dataclass(frozen=True)
class BestRecipe(FragmentModels, StagedSettings, PairedSettings):
    """Settings of ``best``; a backbone and a text encoder are all that has to be given.

    Each member learns by InfoNCE of the cosines of its vectors and, where it scores more than these, of its scores with
    the nearest of a batch. Settings of one matcher are named by it (``mmca.alpha``).
    """

    members: Annotated[
        tuple[str, ...], "matchers trained side by side, whose mean score counts: mmca, vse, scan, bfan or a3vse"
    ] = ("mmca", "vse", "vse")
    shared: Annotated[bool, "let members share one backbone and one text encoder, which costs less"] = False
    epochs: Annotated[int, "passes over the training pairs", (1, 1000000)] = 9
    batch: BatchSize = 256
    texts: TextsPerImage = 2
    candidates: Annotated[
        int, "nearest texts of an image and images of a text that are scored, beside matches; 0 for all", (0, 1000000)
    ] = 16
    dev_depth: DevDepth = 100
    temperature: Annotated[float, "of InfoNCE at the start; it is learnt", (0.001, 100)] = 0.07
    instance: Annotated[float, "weight of the instance loss of dual-path beside the others; 0 for none", (0, 1000)] = (
        0.0
    )
    offline: OfflineStage = field(default_factory=OfflineStage)
    lr: LearningRate = 1e-3
    dim: Dim = 512
    precision: Annotated[Precision, "arithmetic of the network"] = "bf16"
    average: Average = 0.995
    image: ImageSettings = field(
        default_factory=lambda: ImageSettings(train=True, size=256, views="flip", crop=0.35, flip=True, jitter=0.3)
    )
    text: TextSettings = field(default_factory=lambda: TextSettings(train=True, blank=0.2))
    classifier: ClassifierSettings = field(default_factory=lambda: ClassifierSettings(scale=16.0, start="images"))
    optim: Optimisation = field(
        default_factory=lambda: Optimisation(weight_decay=0.05, warmup=0.05, parts=("image:0.3", "text.encoder:0.1"))
    )

    def __post_init__(self) -> None:
        for member in self.members:
            if member not in MEMBERS:
                raise unknown("member", member, MEMBERS)
        if not self.members:
            raise UserError("members= names no matcher; give one or more of mmca, vse, scan, bfan and a3vse")
        if self.shared and not (self.image.train or self.text.train):
            raise UserError("shared=true is for networks that are trained; stored features are shared by all as it is")


def plan(settings: BestRecipe, collection: Collection, around: RunContext) -> Plan:
    """Inputs, one matcher or an ensemble, and one or two stages."""
    _check(settings)
    by_image = collection.sentences("train")
    train = by_image.join_equal_texts()
    sides = fragment_sides(settings.image, settings.text, train, around, settings.dim)
    members = _members(settings, sides)
    matcher = members[0] if len(members) == 1 else _ensemble(settings, sides, members)
    classes = group_classes(settings.classifier, by_image, sides, settings.seed) if settings.instance else None
    training = _BestTraining(settings, sides, train, members, classes)
    return Plan(matcher, sides.inputs, training.stages(), settings.loop(), dev_depth=settings.measured(matcher))


def _check(settings: BestRecipe) -> None:
    image, text = settings.image, settings.text
    if text.train and not text.encoder:
        raise UserError(
            "recipe best trains a text encoder: give --set text.encoder= with a folder or a hub name, "
            "or --set text.train=false for a GRU"
        )
    for member in settings.members:
        check_fragments(member, image, text, settings)


def _members(settings: BestRecipe, sides: Towers) -> list[Matcher]:
    """All with the same pretrained weights, and each with random ones of its own where there are none."""
    heads = copy(sides)
    if settings.shared and len(settings.members) > 1:
        if sides.backbone is not None and settings.image.train:
            heads.shape = replace(heads.shape, image="features", feature_dim=sides.backbone.dim, backbone="")
        if sides.encoder is not None and settings.text.train:
            heads.shape = replace(heads.shape, text="states", state_dim=sides.encoder.dim, encoder="")
    return [
        heads.started(VSE(heads.shape)) if name == "vse" else fragment_matcher(name, settings, heads)
        for name in settings.members
    ]


def _ensemble(settings: BestRecipe, sides: Towers, members: list[Matcher]) -> Ensemble:
    described = tuple(json.dumps(catalog.describe(member)) for member in members)
    backbone, encoder = (sides.shape.backbone, sides.shape.encoder) if settings.shared else ("", "")
    made = Ensemble(EnsembleSettings(described, backbone, encoder))
    for own, member in zip(made.members, members, strict=True):
        own.load_state_dict(member.state_dict())
    if backbone and sides.backbone is not None:
        made.image.load_state_dict(sides.backbone.state_dict())
    if encoder and sides.encoder is not None:
        made.text["encoder"].load_state_dict(sides.encoder.state_dict())
    return made


class _BestTraining:
    """The stages, in which every member has objectives of its own."""

    def __init__(
        self, settings: BestRecipe, sides: Towers, train: Pairing, members: list[Matcher], classes: ClassLabels | None
    ) -> None:
        self.settings, self.sides, self.train, self.members = settings, sides, train, members
        self._batches = pair_batches(settings, train, sides.inputs, sides.around, classes=classes)
        self._own = [self._objective(member, classes) for member in members]

    def _objective(self, member: Matcher, classes: ClassLabels | None) -> Objective:
        """InfoNCE, staged where scores are more than cosines, and the instance loss if asked for."""
        settings = self.settings
        loss: Objective = InfoNCEObjective(settings.temperature)
        if member.reranks:
            loss = settings.staged(loss)
        if classes is None:
            return loss
        told_apart = classifier(settings.classifier, self.sides, member, classes)
        return JointObjective((1.0, loss), (settings.instance, told_apart))

    def _with_offline(self, member: Matcher, own: Objective) -> Objective:
        """The same with offline negatives; temperatures and classes go on from the stage before."""
        loss: Objective = OfflineObjective(OfflineTerms())
        if member.reranks:
            loss = self.settings.staged(loss)
        return JointObjective((1.0, own), (self.settings.offline.weight, loss))

    def stages(self) -> tuple[Stage, ...]:
        """One, and the one with offline negatives, whose epochs count where they are better."""
        settings, offline = self.settings, self.settings.offline
        optim = replace(settings.optim, parts=self._parts(settings.optim.parts))
        first = Stage(
            "infonce", settings.epochs, self._whole(self._own), self._batches, optim.build, settings.lr,
            optim.part_lr(), optim.frozen, optim.factor(), optim.clip, optim.accumulate,
        )  # fmt: skip
        if not offline.epochs:
            return (first,)
        excluded = self.train.matches
        if settings.ignore_also_true and self.train.also_true is not None:
            excluded = excluded.plus(self.train.also_true)
        sampler = OfflineSampler(
            self.train.matches, offline.batch, settings.seed, distribution=offline.hard.spread, excluded=excluded,
            per_image=True,
        )  # fmt: skip
        miner = Miner(offline.hard, self.train, self.sides.around, settings.ignore_also_true, by_vectors=True)
        both = [self._with_offline(member, own) for member, own in zip(self.members, self._own, strict=True)]
        return first, replace(
            first,
            name="offline",
            epochs=offline.epochs,
            objective=self._whole(both),
            batches=self._batches.with_sampler(sampler),
            lr=offline.lr,
            on_start=MinedNegatives(miner, sampler).begin,
        )

    def _whole(self, objectives: list[Objective]) -> Objective:
        return objectives[0] if len(objectives) == 1 else EnsembleObjective(objectives)

    def _parts(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Factors by part of a member as the ensemble names them; networks that are not trained have none."""
        settings, found = self.settings, []
        trained = {"image": settings.image.train, "text.encoder": settings.text.train}
        for part in parts:
            name = part.partition(":")[0]
            if not trained.get(name, True):
                continue
            if len(self.members) == 1 or (settings.shared and name in trained):
                found.append(part)
            else:
                found += [f"members.{number}.{part}" for number in range(len(self.members))]
        return tuple(found)
