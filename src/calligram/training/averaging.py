"""A running average of weights, which scores better and steadier than the last step's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Average:
    """Exponential average of a module's weights and buffers.

    The decay grows with the steps as (1 + n) / (10 + n) up to ``decay``, so that early random weights are forgotten.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay must lie between 0 and 1, got {decay}")
        self.decay, self.steps = decay, 0
        self.weights = {k: v.detach().clone() for k, v in module.state_dict().items()}
        self._live: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Take in the weights after a step."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        now = self._live or self._bind(module)
        floats = [name for name, value in now.items() if value.is_floating_point()]
        # One kernel for all of them: on an accelerator a launch costs more than the arithmetic.
        torch._foreach_lerp_([self.weights[n] for n in floats], [now[n] for n in floats], 1 - decay)
        for name in now.keys() - set(floats):
            self.weights[name].copy_(now[name])

    def _bind(self, module: nn.Module) -> dict[str, Tensor]:
        # Views of the weights themselves: steps change them in place, so listing them once is enough.
        self._live = {k: v.detach() for k, v in module.state_dict().items()}
        return self._live

    def restore(self, weights: Mapping[str, Tensor], steps: int) -> None:
        """Go on from saved weights."""
        self.steps = steps
        for name, value in weights.items():
            self.weights[name].copy_(value)
