"""Settings that recipes share: of every run, of runs that train, and of runs that train on pairs of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch

from calligram.data.collection import Collection
from calligram.data.matches import Matches
from calligram.data.sparse import Sparsity, sparse_view
from calligram.errors import UserError
from calligram.models.matcher import Matcher
from calligram.recipes.parts.sparse import Length, suggested_view
from calligram.training.batches.pair_sampler import PairSampler
from calligram.training.loop import Loop, Precision
from calligram.training.objectives.candidates import RetrieveRerankObjective
from calligram.training.objectives.objective import Objective

Seed = Annotated[int, "source of all randomness", (0, 4611686018427387904)]
DevDepth = Annotated[
    int,
    "candidates of each query that dev is measured with after an epoch, found by vectors; 0 for all",
    (0, 1000000),
]
Average = Annotated[float, "decay of the weight average that is evaluated and saved; 0 for none", (0, 0.999999)]
BatchSize = Annotated[int, "images in a batch, over all processes", (2, 1000000)]
TextsPerImage = Annotated[int, "captions that come with each image of a batch", (1, 1000)]
EpochOf = Annotated[Literal["pairs", "images"], "an epoch takes all pairs, or every image once"]
Warmup = Annotated[int, "first epochs that use all negatives before top_k hardest ones", (0, 1000000)]
LossKind = Annotated[Literal["ranking", "infonce"], "triplet hinge or symmetric InfoNCE"]
Margin = Annotated[float, "of the hinge", (0, 100)]
TopK = Annotated[int | None, "hardest negatives per anchor that count, or none for all", (1, 1000000)]
LearningRate = Annotated[float, "learning rate", (0, 1000)]
Dim = Annotated[int, "size of the joint space", (1, 65536)]


@dataclass(frozen=True)
class SparseSettings:
    """How much of the training captions a run sees (a3vse, Sec. 4.1)."""

    images: Annotated[float, "share of the captioned training images that keep captions", (0, 1)] = 1.0
    captions: Annotated[int | None, "captions that each of them keeps, or none for all", (1, 1000000)] = None
    seed: Annotated[
        int | None, "which ones; levels of one seed are nested. None for the seed of the run", (0, 4611686018427387904)
    ] = 0
    length: Annotated[
        Length, "epochs as set, extended with sparsity, or as many as give half the steps of all captions"
    ] = "as-set"
    run: Annotated[
        str, "run that suggests further images whose captions are kept, beside those that it had by suggestion itself"
    ] = ""
    more: Annotated[float, "share of the captioned training images that it adds", (0, 1)] = 0.0
    uncertainty: Annotated[float, "how much its uncertainty counts, beside coverage", (0, 1)] = 0.5

    def __post_init__(self) -> None:
        if bool(self.run) != bool(self.more):
            raise UserError(
                "sparse.run names the run that suggests further images, and sparse.more their share; give both or none"
            )

    def of(self, collection: Collection, seed: int = 0, device: str | torch.device = "cpu") -> Collection:
        """What is left of a collection.

        Args:
            seed: of the run, where the settings leave it to that.
            device: where the run that suggests further images works.
        """
        sparsity = Sparsity(self.images, self.captions, seed if self.seed is None else self.seed)
        if not self.run:
            return sparse_view(collection, sparsity)
        return suggested_view(
            collection, sparsity, self.run, more=self.more, uncertainty=self.uncertainty, device=device
        )


@dataclass(frozen=True)
class RunSettings:
    """Settings of every run."""

    seed: Seed = 0
    sparse: SparseSettings = field(default_factory=SparseSettings)

    @property
    def teachers(self) -> dict[str, str]:
        """Other runs whose scores are learnt from, or that become part of this one, by the setting that names each."""
        return {}


@dataclass(frozen=True)
class TrainedSettings(RunSettings):
    """Settings of every run that trains in steps."""

    precision: Annotated[Precision, "arithmetic of the network"] = "fp32"
    average: Average = 0.99
    save_steps: Annotated[
        int, "save the state every so many steps, besides after every epoch; 0 for not", (0, 1000000000)
    ] = 0

    def loop(self, select_by: str = "rsum") -> Loop:
        """What holds for the whole run."""
        return Loop(self.seed, self.precision, self.average, select_by, self.save_steps)


@dataclass(frozen=True)
class PairedSettings(TrainedSettings):
    """Settings of runs whose batches are images with captions of each."""

    batch: BatchSize = 128
    texts: TextsPerImage = 1
    epoch_of: EpochOf = "pairs"
    ignore_also_true: Annotated[bool, "leave out negatives known to be true; scenes know them"] = False

    def sampler(self, matches: Matches) -> PairSampler:
        """Which pairs share a batch."""
        return PairSampler(matches, self.batch, self.seed, texts=self.texts, per_image=self.epoch_of == "images")


@dataclass(frozen=True)
class StagedSettings:
    """How a matcher whose score is more than the cosine of its vectors learns from a batch."""

    candidates: Annotated[
        int, "nearest texts of an image and images of a text that are scored, beside matches; 0 for all", (0, 1000000)
    ] = 0
    first_stage: Annotated[
        float | None, "weight of the same loss of the vectors' cosines; none for 1 with candidates, else 0", (0, 1000)
    ] = None
    dev_depth: DevDepth = 0

    def staged(self, objective: Objective) -> Objective:
        """The objective as the settings say."""
        if not self.candidates and not self.first_stage:
            return objective
        return RetrieveRerankObjective(objective, self.candidates, self.first_stage)

    def measured(self, matcher: Matcher) -> int | None:
        """How many candidates of a query dev is measured with; None for all pairs."""
        return self.dev_depth if self.dev_depth and matcher.reranks else None

    def check_staged(self, matcher: Matcher) -> None:
        """Refuse what is not for a matcher."""
        if not matcher.reranks and (self.candidates or self.first_stage):
            raise UserError(
                "candidates and first_stage are for matchers whose score is more than the cosine of their vectors: "
                "scan, bfan and mmca (with an mmca.alpha above 0); take one of them, or leave both out"
            )


# Optimiser and learning-rate settings that recipes share.


@dataclass(frozen=True)
class Optimisation:
    """How weights are changed."""

    optimizer: Annotated[Literal["adamw", "adam", "sgd"], "sgd uses Nesterov momentum 0.9"] = "adamw"
    weight_decay: Annotated[float, "pull of weights towards zero", (0, 100)] = 0.01
    schedule: Annotated[Literal["cosine", "step", "constant"], "course of the learning rate over a stage"] = "cosine"
    step_at: Annotated[float, "share of the stage after which 'step' divides the rate by ten", (0, 1)] = 0.5
    warmup: Annotated[float, "share of the stage in which the rate rises from zero", (0, 0.99)] = 0.1
    clip: Annotated[float | None, "largest norm of the gradient, or none", (1e-12, 1e12)] = 2.0
    accumulate: Annotated[int, "batches per step", (1, 1000000)] = 1
    parts: Annotated[tuple[str, ...], "factors on the rate by part of the matcher, as image:0.1,text:1"] = ()
    frozen: Annotated[tuple[str, ...], "parts of the matcher that are not trained"] = ()

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise UserError(f"accumulate must be at least 1, got {self.accumulate}")
        if not 0 <= self.warmup < 1:
            raise UserError(f"warmup is a share of the stage, 0 to below 1, got {self.warmup}")
        self.part_lr()

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The optimiser over parameter groups."""
        if self.optimizer == "sgd":
            return torch.optim.SGD(groups, lr=0.0, momentum=0.9, nesterov=True, weight_decay=self.weight_decay)
        kind = torch.optim.AdamW if self.optimizer == "adamw" else torch.optim.Adam
        fused = all(p.device.type == "cuda" for group in groups for p in group["params"])
        return kind(groups, lr=0.0, weight_decay=self.weight_decay, fused=fused)

    def factor(self) -> Callable[[float], float]:
        """Factor on the learning rate at a progress of 0..1."""
        return self._at

    def _at(self, progress: float) -> float:
        rise = min(1.0, progress / self.warmup) if self.warmup else 1.0
        if self.schedule == "cosine":
            rest = max(0.0, (progress - self.warmup) / (1 - self.warmup))
            return rise * 0.5 * (1 + math.cos(math.pi * rest))
        if self.schedule == "step" and progress >= self.step_at:
            return rise * 0.1
        return rise

    def part_lr(self) -> dict[str, float]:
        """Factors by part."""
        out = {}
        for part in self.parts:
            name, sign, factor = part.partition(":")
            try:
                out[name.strip()] = float(factor)
            except ValueError:
                sign = ""
            if not sign:
                raise UserError(f"optim.parts takes NAME:FACTOR separated by commas, got '{part}'")
        return out
