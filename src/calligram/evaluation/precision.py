"""Scores in lower precision, where a score is more than one matrix product."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import torch

from calligram.errors import UserError
from calligram.models.matcher import Matcher

Precision = Literal["fp32", "bf16"]


def check_precision(matcher: Matcher, precision: Precision) -> None:
    """Refuse what would change nothing but the ties.

    Raises:
        UserError: for bfloat16 and a matcher that scores by the cosine: rounded to eight bits, many would be equal.
    """
    if precision != "fp32" and not matcher.reranks:
        raise UserError(
            f"--precision {precision} is for matchers that compare each pair by attention, and this one scores by the "
            "cosine of two vectors, which costs next to nothing; leave it out"
        )


def lowered(device: torch.device, precision: Precision) -> contextlib.AbstractContextManager[Any]:
    """What scores are computed under: autocast as in training, or nothing. Encodings stay in float32."""
    return contextlib.nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)
