"""The stages of recipes that train a matcher with one loss over pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from calligram.recipes.optimisation import Optimisation
from calligram.training.loop import Feed, Stage
from calligram.training.objectives import InfoNCEObjective, JointObjective, Objective, RankingObjective


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
