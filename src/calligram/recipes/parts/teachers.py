"""Teachers: trained runs whose scores a run learns from."""

from __future__ import annotations

from pathlib import Path

from calligram.data.pairing import Pairing
from calligram.evaluation.recall import encode_pairing, load_pairing
from calligram.models.catalog import load_matcher
from calligram.recipes.parts.run import RunContext
from calligram.training.objectives.distillation import Teacher


def load_teacher(run: str, train: Pairing, context: RunContext) -> Teacher:
    """Return the matcher of a run with the encodings of all training items, made from the run's own inputs."""
    stored = load_matcher(Path(run).expanduser()).to(context.device)
    matcher = stored.matcher
    loaded = load_pairing(stored.inputs, train, context.track)
    return Teacher(matcher, *encode_pairing(matcher, stored.inputs, loaded, context.track))
