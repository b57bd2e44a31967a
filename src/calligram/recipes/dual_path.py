"""Recipe ``dual-path``: image and text network with the instance loss, then end to end with ranking too (dual-path)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from calligram.data.collection import Collection
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.evaluation.encode import load_pairing
from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.features.inputs import Inputs
from calligram.models.layers.networks import HeadKind
from calligram.models.matcher import Matcher
from calligram.models.vse import VSE
from calligram.recipes.parts.instance_classifier import ClassifierSettings, classifier, group_classes
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import (
    Dim,
    EMADecay,
    LearningRate,
    Optimisation,
    PairedSettings,
    Temperature,
    pair_batches,
)
from calligram.recipes.parts.towers import ImageSettings, TextSettings, Towers, check_towers
from calligram.training.batches.batch import Batches
from calligram.training.loop import Evaluate, Stage
from calligram.training.objectives.instance import InstanceObjective
from calligram.training.objectives.objective import InfoNCEObjective, JointObjective, Objective, RankingObjective

_PAPER_AND_RELEASE_SETTINGS = (
    "batch=32",
    "dim=2048",
    "margin=1",
    "ema_decay=0",
    "classifier.dropout=0.75",
    # Random crops of 224 from images whose shorter side is 256 (Sec. VI-B), mirrored or not.
    "image.crop=0.766",
    "image.flip=true",
    "image.jitter=0",
    "image.views=flip",
    "text.min_count=1",
    "text.dropout=0",
    "text.word_dropout=0",
    "first.epochs=240",
    "second.epochs=60",
    *(
        f"{stage}.optim.{change}"
        for stage in ("first", "second")
        for change in ("optimizer=sgd", "warmup=0", "clip=none")
    ),
)

PRESETS: Mapping[str, tuple[str, ...]] = {
    "ours": (),
    # Secs. V and VI-B. The rate of the second stage and the weight decay are not given.
    "paper": (
        *_PAPER_AND_RELEASE_SETTINGS,
        "head=paper",
        "text.cnn.pooling=mean",
        "first.lr=0.001",
        "second.lr=0.001",
        "second.optim.lr_scale=",
        "first.optim.schedule=constant",
        "second.optim.schedule=constant",
        "first.optim.weight_decay=0",
        "second.optim.weight_decay=0",
    ),
    # The scripts for Flickr30K. Their second stage has no ranking loss, so its weights are those of the COCO scripts.
    "release": (
        *_PAPER_AND_RELEASE_SETTINGS,
        "head=release",
        "text.cnn.pooling=max",
        "text.cnn.shifts=0",
        "first.lr=0.1",
        "first.optim.schedule=constant",
        "first.optim.lr_scale=text.words:0.001",
        "second.lr=0.1",
        "second.weights=2,1,0.1",
        "second.optim.schedule=step",
        "second.optim.step_at=0.667",
        "second.optim.lr_scale=text.words:0.001,image:0.001",
        "first.optim.weight_decay=0.0001",
        "second.optim.weight_decay=0.0001",
    ),
}  # fmt: skip
"""settings of the paper and of its release, where these give them"""


@dataclass(frozen=True)
class StageSettings:
    """Settings of one of the two stages."""

    epochs: Annotated[int, "number of epochs; 0 for no such stage", (0, 1000000)] = 12
    weights: Annotated[
        tuple[float, float, float], "weights of ranking, of the instance loss of images and of that of texts", (0, 1000)
    ] = (0.0, 1.0, 1.0)
    infonce: Annotated[float, "weight of InfoNCE, added to them", (0, 1000)] = 0.0
    lr: LearningRate = 1e-3
    optim: Optimisation = field(default_factory=Optimisation)


@dataclass(frozen=True)
class DualPathRecipe(PairedSettings):
    """Settings of ``dual-path``: losses and networks of the paper; sizes and optimizer differ without a preset.

    The first stage trains everything but the backbone, on stored features. The second stage trains everything, from
    pixels (dual-path, Sec. V). Without a backbone nothing is frozen in the first stage.
    """

    presets: ClassVar[Mapping[str, tuple[str, ...]]] = PRESETS

    preset: Annotated[
        Literal["ours", "paper", "release"], "base settings: ours, those of the paper, or those of its release"
    ] = "ours"
    groups: Annotated[
        Literal["image", "identity"], "groups of the instance loss: an image with its captions, or a person (identity)"
    ] = "image"
    margin: Annotated[float, "margin of the ranking loss", (0, 100)] = 1.0
    negatives: Annotated[Literal["hardest", "random", "all"], "negatives of an anchor in the ranking loss"] = "hardest"
    temperature: Temperature = 0.07
    dim: Dim = 1024
    head: Annotated[
        HeadKind,
        "layers from image features, or text CNN features, to the joint space: one (linear), or two as in the paper or "
        "release",
    ] = "paper"
    ema_decay: EMADecay = 0.998
    first: StageSettings = field(default_factory=StageSettings)
    second: StageSettings = field(
        default_factory=lambda: StageSettings(
            epochs=8, weights=(1.0, 1.0, 1.0), lr=5e-4, optim=Optimisation(lr_scale=("image:0.3",))
        )
    )
    image: ImageSettings = field(default_factory=lambda: ImageSettings(crop=0.5, jitter=0.3))
    text: TextSettings = field(
        default_factory=lambda: TextSettings(network="cnn", word_dim=300, dropout=0.2, word_dropout=0.1)
    )
    classifier: ClassifierSettings = field(default_factory=lambda: ClassifierSettings(dropout=0.5))

    def __post_init__(self) -> None:
        check_towers(self.image, self.text)
        if not self.first.epochs + self.second.epochs:
            raise UserError(
                "first.epochs and second.epochs are both 0, so there is nothing to train; give one of them above 0"
            )
        for name, stage in (("first", self.first), ("second", self.second)):
            if stage.epochs and not any(stage.weights) and not stage.infonce:
                raise UserError(
                    f"{name}.weights and {name}.infonce are all zero, so the stage has no loss; give one above 0"
                )
        if self.image.train:
            raise UserError("recipe dual-path trains the backbone in its second stage; leave image.train=false")


def plan(settings: DualPathRecipe, collection: Collection, context: RunContext) -> Plan:
    """Return inputs, matcher and the two stages (dual-path, Sec. V), which share one classifier."""
    pairing = _pairing(settings, collection, "train")
    end_to_end = bool(settings.image.backbone) and settings.second.epochs > 0
    towers = Towers(
        replace(settings.image, train=end_to_end),
        settings.text,
        pairing.join_equal_texts(),
        context,
        dim=settings.dim,
        head=settings.head,
    )
    matcher = towers.matcher()
    stages = _Stages(settings, pairing, towers, matcher)
    evaluate = None
    if settings.groups == "identity":
        evaluate = _person_retrieval(towers.inputs, _pairing(settings, collection, "dev"), context)
    return Plan(matcher, towers.inputs, stages.stages(), settings.loop(), evaluate=evaluate)


def _pairing(settings: DualPathRecipe, collection: Collection, split: str) -> Pairing:
    return collection.identities(split) if settings.groups == "identity" else collection.sentences(split)


def _person_retrieval(inputs: Inputs, dev: Pairing, context: RunContext) -> Evaluate:
    loaded = load_pairing(inputs, dev, context.track)

    def evaluate(matcher: Matcher) -> Mapping[str, float]:
        found = evaluate_retrieval(matcher, inputs, dev, loaded=loaded).retrieval
        return {"rsum": found.rsum, **{f"t2i_r{k}": getattr(found.t2i, f"r{k}") for k in (1, 5, 10)}}

    return evaluate


class _Stages:
    """Makes the batches and objectives of both stages, which share the classifier."""

    def __init__(self, settings: DualPathRecipe, pairing: Pairing, towers: Towers, matcher: VSE) -> None:
        self.settings, self.towers, self.matcher = settings, towers, matcher
        self.classes = group_classes(settings.classifier, pairing, towers, settings.seed)
        self.infonce = InfoNCEObjective(settings.temperature)
        self._classifier: InstanceObjective | None = None

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages that have epochs."""
        settings, towers = self.settings, self.towers
        found = []
        frozen = towers.shape.image.kind == "backbone"
        if settings.first.epochs:
            batches = self._batches(towers.frozen_inputs() if frozen else towers.inputs)
            found.append(self._stage("stage I", settings.first, batches, ("image",) if frozen else ()))
        if settings.second.epochs:
            # The best epoch is selected within stage II: a result of stage II must come from stage II.
            second = self._stage("stage II", settings.second, self._batches(towers.inputs), ())
            found.append(replace(second, resets_best=True))
        return tuple(found)

    def _batches(self, inputs: Inputs) -> Batches:
        towers = self.towers
        return pair_batches(self.settings, towers.train, inputs, towers.context, classes=self.classes)

    def _stage(self, name: str, stage: StageSettings, batches: Batches, frozen: tuple[str, ...]) -> Stage:
        optim = stage.optim
        return Stage(
            name, stage.epochs, self._objective(stage), batches, optim.build, stage.lr, optim.part_lr(),
            (*frozen, *optim.frozen), optim.factor(), optim.clip, optim.accumulate,
        )  # fmt: skip

    def _objective(self, stage: StageSettings) -> Objective:
        """L = lambda_1 L_rank + lambda_2 L_visual + lambda_3 L_textual (dual-path, Eq. 9); plus InfoNCE."""
        rank, *of_towers = stage.weights
        parts: list[tuple[float, Objective]] = [(rank, self._ranking()), (stage.infonce, self.infonce)]
        if any(of_towers):
            parts.append((1.0, self._instance((of_towers[0], of_towers[1]))))
        return JointObjective(*parts)

    def _ranking(self) -> RankingObjective:
        settings = self.settings
        top_k = 1 if settings.negatives == "hardest" else None
        return RankingObjective(settings.margin, top_k, draw=settings.negatives == "random")

    def _instance(self, weights: tuple[float, float]) -> InstanceObjective:
        """Return the instance loss with its weights and the shared classifier."""
        made = classifier(self.settings.classifier, self.towers, self.matcher, self.classes, weights)
        self._classifier = self._classifier or made
        made.classes = self._classifier.classes
        return made
