"""Batches and stages of recipes that train a matcher with one loss over pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.features.inputs import Inputs
from calligram.recipes.embedding import ImageSettings, TextSettings
from calligram.recipes.optimisation import Optimisation
from calligram.recipes.plan import Surroundings
from calligram.recipes.run_settings import StagedSettings
from calligram.training.batch import Batches
from calligram.training.instance import Classes
from calligram.training.loop import Feed, Stage
from calligram.training.objectives import InfoNCEObjective, JointObjective, Objective, RankingObjective
from calligram.training.samplers import PairSampler


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
    around: Surroundings,
    *,
    sampler: PairSampler | None = None,
    classes: Classes | None = None,
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
        blank=settings.text.hidden_words,
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


def pair_stages(
    loss: PairLoss,
    epochs: int,
    batches: Feed,
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
