"""Settings that recipes share, and what they build: sampler, batches, optimizer, schedule and stages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import torch

from calligram.data.collection import Collection
from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.features.inputs import Inputs
from calligram.models.matcher import Matcher
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.towers import ImageSettings, TextSettings
from calligram.training.batches.batch import Batches, PairSampler
from calligram.training.loop import BatchSource, Loop, Precision, Stage
from calligram.training.objectives.objective import InfoNCEObjective, JointObjective, Objective, RankingObjective

if TYPE_CHECKING:
    from calligram.training.objectives.instance import ClassLabels

WeightedObjectives = tuple[tuple[float, Objective], ...]
"""objectives with their weights"""

Seed = Annotated[int, "seed of all random numbers", (0, 2**62)]
DevDepth = Annotated[
    int,
    "number of candidates per query that are scored on dev after an epoch, retrieved by vectors; 0 for all",
    (0, 1000000),
]
EMADecay = Annotated[
    float, "decay of the exponential moving average of weights, which is evaluated and saved; 0 for none", (0, 0.999999)
]
BatchSize = Annotated[int, "number of images in a batch, over all processes", (2, 1000000)]
TextsPerImage = Annotated[int, "number of captions of each image in a batch", (1, 1000)]
EpochOf = Annotated[
    Literal["pairs", "images"], "unit of an epoch: every pair once (pairs), or every image once (images)"
]
Epochs = Annotated[int, "number of epochs", (1, 1000000)]
EpochsWithWarmup = Annotated[int, "number of epochs, warm-up included", (1, 1000000)]
WarmupEpochs = Annotated[
    int, "number of first epochs with all negatives of a batch, before the top_k hardest ones", (0, 1000000)
]
LossKind = Annotated[Literal["ranking", "infonce"], "loss: triplet hinge (ranking) or symmetric InfoNCE (infonce)"]
Margin = Annotated[float, "margin of the hinge", (0, 100)]
TopK = Annotated[int | None, "number of hardest negatives per anchor that count; none for all", (1, 1000000)]
Temperature = Annotated[float, "initial temperature of InfoNCE, which is trained", (0.001, 100)]
LearningRate = Annotated[float, "learning rate", (0, 1000)]
Dim = Annotated[int, "dimension of the joint embedding space", (1, 65536)]
ModelFolder = Annotated[str, "folder or hub name of a dual encoder, for matcher=pretrained"]


@dataclass(frozen=True)
class SparseSettings:
    """How much of the training captions a run uses (a3vse, Sec. 4.1)."""

    images: Annotated[float, "share of the captioned training images that keep captions", (0, 1)] = 1.0
    captions: Annotated[
        int | None, "number of captions that each of these images keeps; none for all", (1, 1000000)
    ] = None
    seed: Annotated[
        int | None,
        "seed of the selection: with one seed, a smaller share is part of a larger one; none for the seed of the run",
        (0, 2**62),
    ] = 0
    length: Annotated[
        Literal["as-set", "extended", "half"],
        "number of epochs: as set (as-set), more with fewer captions (extended), or so many that training takes half "
        "of the steps that it would take with all captions (half)",
    ] = "as-set"
    run: Annotated[
        str, "folder of a run that suggests further training images; its own training images are kept too"
    ] = ""
    more: Annotated[float, "share of the captioned training images that sparse.run adds", (0, 1)] = 0.0
    uncertainty: Annotated[float, "weight of the uncertainty of sparse.run against coverage", (0, 1)] = 0.5

    def __post_init__(self) -> None:
        if bool(self.run) != bool(self.more):
            raise UserError(
                "sparse.run names the run that suggests further images, and sparse.more their share; give both or none"
            )

    def of(self, collection: Collection, seed: int = 0, device: str | torch.device = "cpu") -> Collection:
        """Return the part of a collection that these settings keep.

        Args:
            seed: seed of the run, used where ``self.seed`` is None.
            device: device of the run that suggests further images.
        """
        if self.images == 1 and self.captions is None and not self.run:
            return collection
        from calligram.data.sparse import Sparsity, sparse_view
        from calligram.recipes.parts.sparse import view_with_suggested_captions

        sparsity = Sparsity(self.images, self.captions, seed if self.seed is None else self.seed)
        if not self.run:
            return sparse_view(collection, sparsity)
        return view_with_suggested_captions(
            collection, sparsity, self.run, more=self.more, uncertainty=self.uncertainty, device=device
        )


@dataclass(frozen=True)
class RunSettings:
    """Settings of every run."""

    seed: Seed = 0
    sparse: SparseSettings = field(default_factory=SparseSettings)

    @property
    def teachers(self) -> dict[str, str]:
        """Other runs that this run learns from or contains, by the setting that names each."""
        return {}


@dataclass(frozen=True)
class TrainedSettings(RunSettings):
    """Settings of every run that trains in steps."""

    precision: Annotated[Precision, "floating-point precision of the network"] = "fp32"
    ema_decay: EMADecay = 0.99
    save_steps: Annotated[
        int, "number of steps between saved states, besides one after every epoch; 0 for none", (0, 1000000000)
    ] = 0

    def loop(self, select_by: str = "rsum") -> Loop:
        """Return the settings of the training loop."""
        return Loop(self.seed, self.precision, self.ema_decay, select_by, self.save_steps)


@dataclass(frozen=True)
class PairedSettings(TrainedSettings):
    """Settings of runs whose batches hold images with captions of each."""

    batch: BatchSize = 128
    texts: TextsPerImage = 1
    epoch_of: EpochOf = "pairs"
    ignore_also_true: Annotated[bool, "leave out negatives that are known to be true matches; scenes know them"] = False

    def sampler(self, matches: Matches) -> PairSampler:
        """Return the sampler that puts pairs into batches."""
        return PairSampler(matches, self.batch, self.seed, texts=self.texts, per_image=self.epoch_of == "images")


@dataclass(frozen=True)
class CandidateSettings:
    """Which pairs of a batch are scored by a matcher that scores pairs by more than the cosine of their vectors."""

    candidates: Annotated[
        int,
        "number of nearest texts per image and images per text that are scored besides the matches; 0 for all",
        (0, 1000000),
    ] = 0
    first_stage: Annotated[
        float | None,
        "weight of a second term: the loss over the cosines of vectors; none for 1 where candidates is set, else 0",
        (0, 1000),
    ] = None
    dev_depth: DevDepth = 0

    def with_candidates(self, objective: Objective) -> Objective:
        """Return the objective over candidates, with the loss of the first stage."""
        if not self.candidates and not self.first_stage:
            return objective
        from calligram.training.objectives.candidates import RetrieveRerankObjective

        return RetrieveRerankObjective(objective, self.candidates, self.first_stage)

    def dev_candidates(self, matcher: Matcher) -> int | None:
        """Return the number of candidates per query that are scored on dev; None for all pairs."""
        return self.dev_depth if self.dev_depth and matcher.reranks else None

    def check_candidates(self, matcher: Matcher) -> None:
        """Refuse settings that a matcher of vectors cannot use."""
        if not matcher.reranks and (self.candidates or self.first_stage):
            raise UserError(
                "candidates and first_stage are for matchers that score pairs by more than the cosine of vectors: "
                "scan, bfan and mmca (with mmca.alpha above 0); choose one of them, or leave both settings out"
            )


@dataclass(frozen=True)
class Optimisation:
    """Settings of the optimizer and of the learning-rate schedule."""

    optimizer: Annotated[Literal["adamw", "adam", "sgd"], "optimizer; sgd has Nesterov momentum 0.9"] = "adamw"
    weight_decay: Annotated[float, "weight decay", (0, 100)] = 0.01
    schedule: Annotated[Literal["cosine", "step", "constant"], "learning-rate schedule over a stage"] = "cosine"
    step_at: Annotated[float, "share of the stage after which schedule=step divides the rate by ten", (0, 1)] = 0.5
    warmup: Annotated[float, "share of the stage in which the rate rises from zero", (0, 0.99)] = 0.1
    clip: Annotated[float | None, "largest norm of the gradient; none for no clipping", (1e-12, 1e12)] = 2.0
    accumulate: Annotated[int, "number of batches whose gradients are added for one step", (1, 1000000)] = 1
    lr_scale: Annotated[
        tuple[str, ...], "factors on the learning rate by part of the matcher, such as image:0.1,text:1"
    ] = ()
    frozen: Annotated[tuple[str, ...], "parts of the matcher that are not trained, such as image"] = ()

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise UserError(f"accumulate must be at least 1, got {self.accumulate}")
        if not 0 <= self.warmup < 1:
            raise UserError(f"warmup is a share of the stage, from 0 to below 1, got {self.warmup}")
        self.part_lr()

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return the optimizer over parameter groups."""
        if self.optimizer == "sgd":
            return torch.optim.SGD(groups, lr=0.0, momentum=0.9, nesterov=True, weight_decay=self.weight_decay)
        kind = torch.optim.AdamW if self.optimizer == "adamw" else torch.optim.Adam
        fused = all(p.device.type == "cuda" for group in groups for p in group["params"])
        return kind(groups, lr=0.0, weight_decay=self.weight_decay, fused=fused)

    def factor(self) -> Callable[[float], float]:
        """Return the factor on the learning rate as a function of progress, 0 to 1."""
        return self._factor_at

    def _factor_at(self, progress: float) -> float:
        rise = min(1.0, progress / self.warmup) if self.warmup else 1.0
        if self.schedule == "cosine":
            rest = max(0.0, (progress - self.warmup) / (1 - self.warmup))
            return rise * 0.5 * (1 + math.cos(math.pi * rest))
        if self.schedule == "step" and progress >= self.step_at:
            return rise * 0.1
        return rise

    def part_lr(self) -> dict[str, float]:
        """Return the factors on the learning rate by part of the matcher."""
        out = {}
        for part in self.lr_scale:
            name, sign, factor = part.partition(":")
            try:
                out[name.strip()] = float(factor)
            except ValueError:
                sign = ""
            if not sign:
                raise UserError(f"optim.lr_scale takes NAME:FACTOR separated by commas, got '{part}'")
        return out


class BatchSettings(Protocol):
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
    settings: BatchSettings,
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
    candidates: CandidateSettings = CandidateSettings()
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
