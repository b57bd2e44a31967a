"""What a run consists of: stages, run-wide settings, parameter groups and the weight average."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calligram.errors import UserError
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


def parameter_groups(
    matcher: Matcher, objective: nn.Module, lr_scale: Mapping[str, float], frozen: Sequence[str]
) -> list[dict[str, Any]]:
    """Group parameters by their factor on the learning rate: the matcher's modules, then the objective's own weights.

    Args:
        lr_scale: factors by name of a sub-module; the longest matching name wins.
        frozen: sub-modules that are not trained.
    """
    check_parameter_groups(matcher, (*lr_scale, *frozen))
    by_factor: dict[float, list[nn.Parameter]] = {}
    for name, parameter in matcher.named_parameters():
        fixed = any(name.startswith(f"{part}.") for part in frozen)
        parameter.requires_grad_(not fixed)
        if not fixed:
            within = [part for part in lr_scale if name.startswith(f"{part}.")]
            factor = lr_scale[max(within, key=len)] if within else 1.0
            by_factor.setdefault(factor, []).append(parameter)
    groups = [{"params": params, "factor": factor} for factor, params in by_factor.items()]
    own = [p for p in objective.parameters() if p.requires_grad]
    return [*groups, {"params": own, "factor": 1.0}] if own else groups


def check_parameter_groups(matcher: Matcher, named: Iterable[str]) -> None:
    """Refuse names of modules that the matcher does not have."""
    names = dict(matcher.named_modules())
    for part in named:
        if part not in names:
            tops = ", ".join(name for name, _ in matcher.named_children())
            raise UserError(
                f"the matcher has no module '{part}'; it has: {tops}, and their sub-modules by dotted names"
            )


def freeze_statistics(matcher: Matcher, frozen: Sequence[str]) -> None:
    """Put frozen modules into evaluation mode, so that batch normalisation does not update its statistics."""
    for name in frozen:
        matcher.get_submodule(name).eval()


class WeightAverage:
    """Exponential moving average of a module's weights and buffers; it scores better than the last weights.

    The decay grows with the steps as (1 + n) / (10 + n) up to ``decay``, so that early random weights are forgotten.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay must be between 0 and 1, got {decay}")
        self.decay, self.steps = decay, 0
        self.weights = {k: v.detach().clone() for k, v in module.state_dict().items()}
        self._views: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Add the weights after a step."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        now = self._views or self._list_views(module)
        floats = [name for name, value in now.items() if value.is_floating_point()]
        # One kernel for all weights: on a GPU a launch costs more than the arithmetic.
        torch._foreach_lerp_([self.weights[n] for n in floats], [now[n] for n in floats], 1 - decay)
        for name in now.keys() - set(floats):
            self.weights[name].copy_(now[name])

    def _list_views(self, module: nn.Module) -> dict[str, Tensor]:
        # Views of the weights: steps change them in place, so they are listed once.
        self._views = {k: v.detach() for k, v in module.state_dict().items()}
        return self._views

    def restore(self, weights: Mapping[str, Tensor], steps: int) -> None:
        """Continue from saved weights."""
        self.steps = steps
        for name, value in weights.items():
            self.weights[name].copy_(value)
