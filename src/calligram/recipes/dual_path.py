"""Recipe ``dual-path``: an image and a text network by instance loss, then both end to end with ranking (dual-path)."""

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
from calligram.recipes.parts.pair_stages import ClassifierSettings, classifier, group_classes, pair_batches
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import Average, Dim, LearningRate, Optimisation, PairedSettings
from calligram.recipes.parts.towers import ImageSettings, TextSettings, Towers, check_sides
from calligram.training.batches.batch import Batches
from calligram.training.loop import Evaluate, Stage
from calligram.training.objectives.instance import InstanceObjective
from calligram.training.objectives.objective import InfoNCEObjective, JointObjective, Objective, RankingObjective

# Settings of the dual-path paper and of its release, where they say or show them.

_BOTH = (
    "batch=32",
    "dim=2048",
    "margin=1",
    "average=0",
    "classifier.dropout=0.75",
    # Random crops of 224 from pictures whose shorter side is 256 (Sec. VI-B), mirrored or not.
    "image.crop=0.766",
    "image.flip=true",
    "image.jitter=0",
    "image.views=flip",
    "text.min_count=1",
    "text.dropout=0",
    "text.blank=0",
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
        *_BOTH,
        "head=paper",
        "text.cnn.pooling=mean",
        "first.lr=0.001",
        "second.lr=0.001",
        "second.optim.parts=",
        "first.optim.schedule=constant",
        "second.optim.schedule=constant",
        "first.optim.weight_decay=0",
        "second.optim.weight_decay=0",
    ),
    # The scripts for Flickr30K; their second stage ships without ranking, so its weights are those for COCO.
    "release": (
        *_BOTH,
        "head=release",
        "text.cnn.pooling=max",
        "text.cnn.shifts=0",
        "first.lr=0.1",
        "first.optim.schedule=constant",
        "first.optim.parts=text.words:0.001",
        "second.lr=0.1",
        "second.weights=2,1,0.1",
        "second.optim.schedule=step",
        "second.optim.step_at=0.667",
        "second.optim.parts=text.words:0.001,image:0.001",
        "first.optim.weight_decay=0.0001",
        "second.optim.weight_decay=0.0001",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class StageSettings:
    """One of the two stages."""

    epochs: Annotated[int, "passes over the training pairs; 0 leaves the stage out", (0, 1000000)] = 12
    weights: Annotated[
        tuple[float, float, float], "of ranking, of the images' instance loss and of the texts'", (0, 1000)
    ] = (0.0, 1.0, 1.0)
    infonce: Annotated[float, "weight of InfoNCE beside them", (0, 1000)] = 0.0
    lr: LearningRate = 1e-3
    optim: Optimisation = field(default_factory=Optimisation)


@dataclass(frozen=True)
class DualPathRecipe(PairedSettings):
    """Settings of ``dual-path``: losses and networks are the paper's; sizes and optimiser ours, but for the presets.

    The first stage trains everything but the backbone, on features that are stored once; the second everything, from
    pixels (dual-path, Sec. V). Where there is no backbone, nothing is held in the first.
    """

    presets: ClassVar[Mapping[str, tuple[str, ...]]] = PRESETS

    preset: Annotated[
        Literal["ours", "paper", "release"], "settings that others are laid over: ours, the paper's or its release's"
    ] = "ours"
    groups: Annotated[Literal["image", "identity"], "what belongs together: an image's captions, or a person's"] = (
        "image"
    )
    margin: Annotated[float, "of the ranking loss", (0, 100)] = 1.0
    negatives: Annotated[Literal["hardest", "random", "all"], "which count for an anchor of the ranking loss"] = (
        "hardest"
    )
    temperature: Annotated[float, "of InfoNCE at the start; it is learnt", (0.001, 100)] = 0.07
    dim: Dim = 1024
    head: Annotated[
        HeadKind, "maps image features into it, and a text CNN's: one layer, or two as the paper or release has them"
    ] = "paper"
    average: Average = 0.998
    first: StageSettings = field(default_factory=StageSettings)
    second: StageSettings = field(
        default_factory=lambda: StageSettings(
            epochs=8, weights=(1.0, 1.0, 1.0), lr=5e-4, optim=Optimisation(parts=("image:0.3",))
        )
    )
    image: ImageSettings = field(default_factory=lambda: ImageSettings(crop=0.5, jitter=0.3))
    text: TextSettings = field(
        default_factory=lambda: TextSettings(network="cnn", word_dim=300, dropout=0.2, blank=0.1)
    )
    classifier: ClassifierSettings = field(default_factory=lambda: ClassifierSettings(dropout=0.5))

    def __post_init__(self) -> None:
        check_sides(self.image, self.text)
        if not self.first.epochs + self.second.epochs:
            raise UserError("first.epochs and second.epochs are both 0; there is nothing to train")
        for name, stage in (("first", self.first), ("second", self.second)):
            if stage.epochs and not any(stage.weights) and not stage.infonce:
                raise UserError(f"{name}.weights and {name}.infonce are all zero; there is nothing to learn")
        if self.image.train:
            raise UserError("image.train is for other recipes; this one trains the backbone in its second stage")


def plan(settings: DualPathRecipe, collection: Collection, around: RunContext) -> Plan:
    """Inputs, matcher and the two stages of one loop (dual-path, Sec. V).

    The classifier goes on from one stage to the other.
    """
    pairing = _pairing(settings, collection, "train")
    end_to_end = bool(settings.image.backbone) and settings.second.epochs > 0
    sides = Towers(
        replace(settings.image, train=end_to_end),
        settings.text,
        pairing.join_equal_texts(),
        around,
        dim=settings.dim,
        head=settings.head,
    )
    matcher = sides.matcher()
    stages = _Stages(settings, pairing, sides, matcher)
    evaluate = None
    if settings.groups == "identity":
        evaluate = _finds_persons(sides.inputs, _pairing(settings, collection, "dev"), around)
    return Plan(matcher, sides.inputs, stages.stages(), settings.loop(), evaluate=evaluate)


def _pairing(settings: DualPathRecipe, collection: Collection, split: str) -> Pairing:
    return collection.identities(split) if settings.groups == "identity" else collection.sentences(split)


def _finds_persons(inputs: Inputs, dev: Pairing, around: RunContext) -> Evaluate:
    loaded = load_pairing(inputs, dev, around.track)

    def evaluate(matcher: Matcher) -> Mapping[str, float]:
        found = evaluate_retrieval(matcher, inputs, dev, loaded=loaded).retrieval
        return {"rsum": found.rsum, **{f"t2i_r{k}": getattr(found.t2i, f"r{k}") for k in (1, 5, 10)}}

    return evaluate


class _Stages:
    """Batches and objectives of both stages, which share the classifier."""

    def __init__(self, settings: DualPathRecipe, pairing: Pairing, sides: Towers, matcher: VSE) -> None:
        self.settings, self.sides, self.matcher = settings, sides, matcher
        self.classes = group_classes(settings.classifier, pairing, sides, settings.seed)
        self.infonce = InfoNCEObjective(settings.temperature)
        self._classifier: InstanceObjective | None = None

    def stages(self) -> tuple[Stage, ...]:
        """Those that have epochs."""
        settings, sides = self.settings, self.sides
        found = []
        held = sides.shape.image == "backbone"
        if settings.first.epochs:
            batches = self._batches(sides.frozen_inputs() if held else sides.inputs)
            found.append(self._stage("stage I", settings.first, batches, ("image",) if held else ()))
        if settings.second.epochs:
            # Chosen anew: a row of stage II must show stage II.
            second = self._stage("stage II", settings.second, self._batches(sides.inputs), ())
            found.append(replace(second, resets_best=True))
        return tuple(found)

    def _batches(self, inputs: Inputs) -> Batches:
        sides = self.sides
        return pair_batches(self.settings, sides.train, inputs, sides.around, classes=self.classes)

    def _stage(self, name: str, stage: StageSettings, batches: Batches, held: tuple[str, ...]) -> Stage:
        optim = stage.optim
        return Stage(
            name, stage.epochs, self._objective(stage), batches, optim.build, stage.lr, optim.part_lr(),
            (*held, *optim.frozen), optim.factor(), optim.clip, optim.accumulate,
        )  # fmt: skip

    def _objective(self, stage: StageSettings) -> Objective:
        """L = lambda_1 L_rank + lambda_2 L_visual + lambda_3 L_textual (dual-path, Eq. 9), and InfoNCE if asked for."""
        rank, *of_sides = stage.weights
        parts: list[tuple[float, Objective]] = [(rank, self._ranking()), (stage.infonce, self.infonce)]
        if any(of_sides):
            parts.append((1.0, self._shared((of_sides[0], of_sides[1]))))
        return JointObjective(*parts)

    def _ranking(self) -> RankingObjective:
        settings = self.settings
        top_k = 1 if settings.negatives == "hardest" else None
        return RankingObjective(settings.margin, top_k, draw=settings.negatives == "random")

    def _shared(self, weights: tuple[float, float]) -> InstanceObjective:
        """The instance loss with weights of its own and the one classifier."""
        made = classifier(self.settings.classifier, self.sides, self.matcher, self.classes, weights)
        self._classifier = self._classifier or made
        made.classes = self._classifier.classes
        return made
