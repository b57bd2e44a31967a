"""What a run is made of: stages, where their batches come from, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from calligram.models.matcher import Matcher
from calligram.training.batch import Batch
from calligram.training.objectives import Objective
from calligram.training.runs import Run

Precision = Literal["fp32", "bf16", "fp16"]
Evaluate = Callable[[Matcher], Mapping[str, float]]


class Feed(Protocol):
    """A source of batches that can be entered anywhere."""

    def __len__(self) -> int:
        """Batches in an epoch."""
        ...

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch, the same each time it is asked."""
        ...


@dataclass(frozen=True)
class Stage:
    """A stretch of training with one objective, one optimiser and one set of frozen parts."""

    name: str
    epochs: int
    objective: Objective
    batches: Feed
    optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
    """from parameter groups"""
    lr: float
    part_lr: Mapping[str, float] = field(default_factory=dict)
    """factor on the learning rate for sub-modules of the matcher, by name; the longest name wins"""
    frozen: Sequence[str] = ()
    """sub-modules of the matcher kept fixed, in evaluation mode"""
    schedule: Callable[[float], float] = lambda progress: 1.0
    """factor on the learning rate at ``progress`` 0..1 of the stage"""
    clip: float | None = 2.0
    """largest norm of the gradient"""
    accumulate: int = 1
    """batches per step"""
    anew: bool = False
    """the best epoch is chosen from this stage on; what was best before does not count"""
    enter: Callable[[Matcher, Run, bool], bool] | None = None
    """called before the stage's steps, and again after a kill; handed True where none of them was taken yet. It may
    then change the matcher, to begin from scratch for instance, and says whether it did"""


@dataclass(frozen=True)
class Loop:
    """What holds for a whole run."""

    seed: int = 0
    precision: Precision = "fp32"
    average: float = 0.0
    """decay of the weight average that is evaluated and saved; 0 uses the weights themselves"""
    select_by: str = "rsum"
    """metric of ``evaluate`` that chooses the best epoch; higher is better"""
    save_steps: int = 0
    """also save the state every so many steps; it is always saved after an epoch"""
    log_steps: int = 10
