"""Recipe ``best``: the combination with the highest recalls, trained end to end, as one matcher or an ensemble."""

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
from calligram.recipes.parts.instance_classifier import ClassifierSettings, classifier, group_classes
from calligram.recipes.parts.matchers import FragmentModels, check_fragments, fragment_matcher, fragment_towers
from calligram.recipes.parts.mined_negatives import MinedNegatives, MinedNegativesSettings, Miner
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import (
    BatchSize,
    CandidateSettings,
    DevDepth,
    Dim,
    EMADecay,
    Epochs,
    LearningRate,
    Optimisation,
    PairedSettings,
    Temperature,
    TextsPerImage,
    pair_batches,
)
from calligram.recipes.parts.towers import ImageSettings, TextSettings, Towers
from calligram.training.batches.mined_negatives import OfflineSampler
from calligram.training.loop import Precision, Stage
from calligram.training.objectives.instance import ClassLabels
from calligram.training.objectives.objective import EnsembleObjective, InfoNCEObjective, JointObjective, Objective
from calligram.training.objectives.offline import OfflineObjective, OfflineTerms

MEMBER_KINDS = ("mmca", "vse", "scan", "bfan", "a3vse")
"""matchers that can be ensemble members"""


@dataclass(frozen=True)
class OfflineStage:
    """Settings of a last stage with negatives that the run mines by its vectors (aoq, Eq. 5).

    An epoch takes every image once, with one caption. A pair brings two mined images and two mined texts, and a match
    of each of those, so batches are smaller than in the first stage.
    """

    epochs: Annotated[int, "number of epochs of images; 0 for no such stage", (0, 1000000)] = 0
    batch: BatchSize = 64
    weight: Annotated[float, "weight of the adaptive quintuplet loss, added to the other losses", (0, 1000)] = 1.0
    lr: LearningRate = 1e-4
    mined: MinedNegativesSettings = field(default_factory=MinedNegativesSettings)


@dataclass(frozen=True)
class BestRecipe(FragmentModels, CandidateSettings, PairedSettings):
    """Settings of ``best``; only a backbone and a text encoder must be given.

    Each ensemble member is trained by InfoNCE over the cosines of its vectors. A member that scores pairs by more than
    vectors is also trained by InfoNCE over its scores of the nearest candidates of a batch. Settings of one matcher are
    named by it (``mmca.alpha``).
    """

    ensemble_members: Annotated[
        tuple[str, ...],
        "matchers that are trained together and whose scores are averaged: mmca, vse, scan, bfan, a3vse",
    ] = ("mmca", "vse", "vse")
    shared: Annotated[bool, "share one backbone and one text encoder among ensemble members, which costs less"] = False
    epochs: Epochs = 9
    batch: BatchSize = 256
    texts: TextsPerImage = 2
    candidates: Annotated[
        int,
        "number of nearest texts per image and images per text that are scored besides the matches; 0 for all",
        (0, 1000000),
    ] = 16
    dev_depth: DevDepth = 100
    temperature: Temperature = 0.07
    instance: Annotated[float, "weight of the instance loss of dual-path; 0 for none", (0, 1000)] = 0.0
    offline: OfflineStage = field(default_factory=OfflineStage)
    lr: LearningRate = 1e-3
    dim: Dim = 512
    precision: Annotated[Precision, "floating-point precision of the network"] = "bf16"
    ema_decay: EMADecay = 0.995
    image: ImageSettings = field(
        default_factory=lambda: ImageSettings(train=True, size=256, views="flip", crop=0.35, flip=True, jitter=0.3)
    )
    text: TextSettings = field(default_factory=lambda: TextSettings(train=True, word_dropout=0.2))
    classifier: ClassifierSettings = field(default_factory=lambda: ClassifierSettings(scale=16.0, init="images"))
    optim: Optimisation = field(
        default_factory=lambda: Optimisation(weight_decay=0.05, warmup=0.05, lr_scale=("image:0.3", "text.encoder:0.1"))
    )

    def __post_init__(self) -> None:
        for member in self.ensemble_members:
            if member not in MEMBER_KINDS:
                raise unknown("ensemble member", member, MEMBER_KINDS)
        if not self.ensemble_members:
            raise UserError("ensemble_members= names no matcher; give one or more of mmca, vse, scan, bfan and a3vse")
        if self.shared and not (self.image.train or self.text.train):
            raise UserError(
                "shared=true is for networks that are trained; all members read the same stored features anyway"
            )


def plan(settings: BestRecipe, collection: Collection, context: RunContext) -> Plan:
    """Return inputs, one matcher or an ensemble, and one or two stages."""
    _check(settings)
    by_image = collection.sentences("train")
    train = by_image.join_equal_texts()
    towers = fragment_towers(settings.image, settings.text, train, context, settings.dim)
    members = _members(settings, towers)
    matcher = members[0] if len(members) == 1 else _ensemble(settings, towers, members)
    classes = group_classes(settings.classifier, by_image, towers, settings.seed) if settings.instance else None
    training = _BestTraining(settings, towers, train, members, classes)
    return Plan(matcher, towers.inputs, training.stages(), settings.loop(), dev_depth=settings.dev_candidates(matcher))


def _check(settings: BestRecipe) -> None:
    image, text = settings.image, settings.text
    if text.train and not text.encoder:
        raise UserError(
            "recipe best trains a text encoder: give --set text.encoder= with a folder or a hub name, "
            "or --set text.train=false for a GRU"
        )
    for member in settings.ensemble_members:
        check_fragments(member, image, text, settings)


def _members(settings: BestRecipe, towers: Towers) -> list[Matcher]:
    """Return the ensemble members: equal pretrained weights, and different random weights elsewhere."""
    heads = copy(towers)
    if settings.shared and len(settings.ensemble_members) > 1:
        if towers.backbone is not None and settings.image.train:
            image = replace(heads.shape.image, kind="features", feature_dim=towers.backbone.dim, backbone="")
            heads.shape = replace(heads.shape, image=image)
        if towers.encoder is not None and settings.text.train:
            text = replace(heads.shape.text, kind="states", state_dim=towers.encoder.dim, encoder="")
            heads.shape = replace(heads.shape, text=text)
    return [
        heads.with_pretrained_weights(VSE(heads.shape)) if name == "vse" else fragment_matcher(name, settings, heads)
        for name in settings.ensemble_members
    ]


def _ensemble(settings: BestRecipe, towers: Towers, members: list[Matcher]) -> Ensemble:
    described = tuple(json.dumps(catalog.describe(member)) for member in members)
    backbone, encoder = (towers.shape.image.backbone, towers.shape.text.encoder) if settings.shared else ("", "")
    made = Ensemble(EnsembleSettings(described, backbone, encoder))
    for own, member in zip(made.members, members, strict=True):
        own.load_state_dict(member.state_dict())
    if backbone and towers.backbone is not None:
        made.image.load_state_dict(towers.backbone.state_dict())
    if encoder and towers.encoder is not None:
        made.text["encoder"].load_state_dict(towers.encoder.state_dict())
    return made


class _BestTraining:
    """Makes the stages; every ensemble member has its own objectives."""

    def __init__(
        self, settings: BestRecipe, towers: Towers, train: Pairing, members: list[Matcher], classes: ClassLabels | None
    ) -> None:
        self.settings, self.towers, self.train, self.members = settings, towers, train, members
        self._batches = pair_batches(settings, train, towers.inputs, towers.context, classes=classes)
        self._objectives = [self._objective(member, classes) for member in members]

    def _objective(self, member: Matcher, classes: ClassLabels | None) -> Objective:
        """InfoNCE, over candidates too for members that score pairs, and the instance loss if it has a weight."""
        settings = self.settings
        loss: Objective = InfoNCEObjective(settings.temperature)
        if member.reranks:
            loss = settings.with_candidates(loss)
        if classes is None:
            return loss
        instance = classifier(settings.classifier, self.towers, member, classes)
        return JointObjective((1.0, loss), (settings.instance, instance))

    def _with_offline(self, member: Matcher, own: Objective) -> Objective:
        """Add the loss of mined negatives; temperatures and classes continue from the first stage."""
        loss: Objective = OfflineObjective(OfflineTerms())
        if member.reranks:
            loss = self.settings.with_candidates(loss)
        return JointObjective((1.0, own), (self.settings.offline.weight, loss))

    def stages(self) -> tuple[Stage, ...]:
        """One stage, and one with mined negatives; the best epoch of both is kept."""
        settings, offline = self.settings, self.settings.offline
        optim = replace(settings.optim, lr_scale=self._lr_scale(settings.optim.lr_scale))
        first = Stage(
            "infonce", settings.epochs, self._joint(self._objectives), self._batches, optim.build, settings.lr,
            optim.part_lr(), optim.frozen, optim.factor(), optim.clip, optim.accumulate,
        )  # fmt: skip
        if not offline.epochs:
            return (first,)
        excluded = self.train.matches
        if settings.ignore_also_true and self.train.also_true is not None:
            excluded = excluded.plus(self.train.also_true)
        sampler = OfflineSampler(
            self.train.matches, offline.batch, settings.seed, distribution=offline.mined.spread, excluded=excluded,
            per_image=True,
        )  # fmt: skip
        miner = Miner(offline.mined, self.train, self.towers.context, settings.ignore_also_true, by_vectors=True)
        both = [self._with_offline(member, own) for member, own in zip(self.members, self._objectives, strict=True)]
        return first, replace(
            first,
            name="offline",
            epochs=offline.epochs,
            objective=self._joint(both),
            batches=self._batches.with_sampler(sampler),
            lr=offline.lr,
            on_start=MinedNegatives(miner, sampler).begin,
        )

    def _joint(self, objectives: list[Objective]) -> Objective:
        return objectives[0] if len(objectives) == 1 else EnsembleObjective(objectives)

    def _lr_scale(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Return learning-rate factors by the module names of the ensemble, without networks that are not trained."""
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
