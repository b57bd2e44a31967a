"""What a run consists of: its stages, and the settings of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from calligram.models.matcher import Matcher
from calligram.training.batches.batch import BatchSource
from calligram.training.objectives.objective import Objective
from calligram.training.runs import Run

Precision = Literal["fp32", "bf16", "fp16"]
Evaluate = Callable[[Matcher], Mapping[str, float]]
"""function that returns the dev metrics of a matcher by name"""


@dataclass(frozen=True)
class Stage:
    """A part of training with one objective, one optimiser and one set of frozen modules."""

    name: str
    epochs: int
    objective: Objective
    batches: BatchSource
    optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
    """builds the optimiser from parameter groups"""
    lr: float
    lr_scale: Mapping[str, float] = field(default_factory=dict)
    """factor on the learning rate for sub-modules of the matcher, by name; the longest matching name wins"""
    frozen: Sequence[str] = ()
    """names of sub-modules that are not trained; they are in evaluation mode"""
    schedule: Callable[[float], float] = lambda progress: 1.0
    """factor on the learning rate at ``progress`` 0 .. 1 of the stage"""
    clip: float | None = 2.0
    """largest norm of the gradient; None for no clipping"""
    accumulate: int = 1
    """number of batches per optimizer step"""
    resets_best: bool = False
    """whether the best epoch is chosen from this stage on, without earlier stages"""
    on_start: Callable[[Matcher, Run, bool], bool] | None = None
    """called before the stage's first step, and again when the stage is resumed. The last argument is True if no step
    has been taken. It may then change the matcher, for instance re-initialise it, and returns whether it did"""


@dataclass(frozen=True)
class Loop:
    """Settings of a whole run."""

    seed: int = 0
    precision: Precision = "fp32"
    ema_decay: float = 0.0
    """decay of the weight average (EMA) that is evaluated and saved; 0 uses the weights themselves"""
    select_by: str = "rsum"
    """metric of ``evaluate`` that selects the best epoch; higher is better"""
    save_steps: int = 0
    """also save the state every so many steps; it is always saved after an epoch"""
    log_steps: int = 10
