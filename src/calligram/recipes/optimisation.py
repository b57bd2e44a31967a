"""Optimiser and learning-rate settings that recipes share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch

from calligram.errors import UserError


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
