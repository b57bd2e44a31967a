"""Stops a run that has gone wrong, and says what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping

from calligram.errors import UserError
from calligram.training.objectives import Spread

ADVICE = "lower the learning rate (--set lr=...), clip gradients (--set optim.clip=1), or use --set precision=fp32"


def _listed(names: list[str], terms: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={terms[name]}" for name in names)


class Watch:
    """Looks at the loss of every step and at the spread of the vectors.

    Networks start with vectors close together, so spread is judged only after ``patience`` steps, and only when it
    stayed under ``least`` for as many: hard negatives from the start push everything onto one point, where the loss
    rests at twice the margin and never moves again.
    """

    def __init__(self, least: float = 1e-4, patience: int = 100) -> None:
        self.least, self.patience, self._below, self._seen = least, patience, 0, 0

    def look(self, step: int, terms: Mapping[str, float], spread: Spread | None) -> None:
        """Raise when the loss is not finite or the embeddings have collapsed."""
        broken = [name for name, value in terms.items() if not math.isfinite(value)]
        if broken:
            raise UserError(f"the loss is not finite at step {step} ({_listed(broken, terms)}); {ADVICE}")
        if spread is None:
            return
        self._seen += 1
        side, least = min((("images", float(spread.images)), ("texts", float(spread.texts))), key=lambda s: s[1])
        self._below = self._below + 1 if least < self.least else 0
        if self._seen >= self.patience and self._below >= self.patience:
            raise UserError(
                f"the embeddings collapsed: at step {step} all {side} have the same vector (spread {least:.1e}). "
                "Hard negatives too early do this; warm up with all negatives (--set warmup_epochs=2), "
                "or lower the learning rate (--set lr=...)"
            )
