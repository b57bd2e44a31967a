"""Which parts of a matcher learn, and how fast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from calligram.errors import UserError
from calligram.models.matcher import Matcher


def parameter_groups(
    matcher: Matcher, objective: nn.Module, part_lr: Mapping[str, float], frozen: Sequence[str]
) -> list[dict[str, Any]]:
    """Parameter groups by factor on the learning rate: the matcher's parts, then the objective's own weights.

    Args:
        part_lr: factors by name of a sub-module; the longest name wins.
        frozen: sub-modules that do not learn.
    """
    check_parts(matcher, (*part_lr, *frozen))
    by_factor: dict[float, list[nn.Parameter]] = {}
    for name, parameter in matcher.named_parameters():
        fixed = any(name.startswith(f"{part}.") for part in frozen)
        parameter.requires_grad_(not fixed)
        if not fixed:
            within = [part for part in part_lr if name.startswith(f"{part}.")]
            factor = part_lr[max(within, key=len)] if within else 1.0
            by_factor.setdefault(factor, []).append(parameter)
    groups = [{"params": params, "factor": factor} for factor, params in by_factor.items()]
    own = [p for p in objective.parameters() if p.requires_grad]
    return [*groups, {"params": own, "factor": 1.0}] if own else groups


def check_parts(matcher: Matcher, named: Iterable[str]) -> None:
    """Refuse parts that the matcher does not have."""
    names = dict(matcher.named_modules())
    for part in named:
        if part not in names:
            tops = ", ".join(name for name, _ in matcher.named_children())
            raise UserError(f"the matcher has no part '{part}'; it has: {tops}, and their parts by dotted names")


def hold_still(matcher: Matcher, frozen: Sequence[str]) -> None:
    """Put frozen parts into evaluation mode: batch normalisation must not go on adapting its statistics there."""
    for name in frozen:
        matcher.get_submodule(name).eval()
