"""Training from Python: ``calligram.fit`` trains a composition of settings, or a matcher that the caller made."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from calligram.data.collection import Collection
from calligram.device import device_named
from calligram.errors import UserError
from calligram.evaluation.trained_run import TrainedRun, open_run
from calligram.features.inputs import Inputs
from calligram.models.matcher import Encoded, Matcher
from calligram.progress import Track, silent
from calligram.recipes.catalog import RECIPES, Preset, find_preset
from calligram.recipes.pairs import PairsSettings, plan_composition
from calligram.recipes.parts.matchers import GivenMatcher
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.recipes.parts.terms import Term, TermContext
from calligram.recipes.parts.towers import Towers
from calligram.training.batches.batch import Batch
from calligram.training.objectives.objective import Objective

Loss = Callable[[Tensor, Tensor], Tensor]
"""a loss of scores (A, C) and targets (A, C): +1 match, -1 negative, 0 ignored; rows are anchors"""


@dataclass(frozen=True)
class LossTerm(Term):
    """A loss from outside: any function of scores and targets, with images and with texts as anchors."""

    name: ClassVar[str] = "loss"
    of_scores: ClassVar[bool] = True
    for_pseudo_pairs: ClassVar[bool] = True

    function: Loss | None = None
    source: Annotated[str, "where the function is defined"] = ""

    @classmethod
    def of(cls, function: Loss) -> LossTerm:
        """Return the term of a function."""
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return cls(function=function, source=f"{getattr(function, '__module__', '')}:{name}")

    def build(self, context: TermContext) -> Objective:
        """Return the mean of the loss over both directions."""
        assert self.function is not None
        return LossObjective(self.function)


class LossObjective(Objective):
    """The mean of a loss with images as anchors and with texts as anchors."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return one term."""
        scores = matcher.score(images, texts)
        return {"loss": (self.loss(scores, batch.image_target) + self.loss(scores.T, batch.text_target)) / 2}


def fit(
    matcher: Matcher | str | Any | Sequence[Any],
    data: Collection | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    inputs: Inputs | None = None,
    loss: Loss | None = None,
    resume: bool = False,
    device: str | torch.device = "auto",
    track: Track = silent,
    **settings: Any,
) -> TrainedRun:
    """Train a matcher into the folder ``out`` and return the run.

    Args:
        matcher: a matcher object; or settings of a matcher, such as ``SCANSettings(direction="i2t")``, or several of
            them for an ensemble; or the name of a preset, such as ``"aoq"``.
        data: a collection, or its folder.
        inputs: inputs of a matcher object; pixels and words of the training captions where they are not given.
        loss: a function of scores (A, C) and targets (A, C) in place of ``terms``.
        resume: continue the run in ``out``.
        settings: further settings by name, such as ``epochs=3``, ``lr=1e-3``, ``image=ImageSettings(...)``,
            ``terms=[InfoNCE(), Instance(weight=0.5)]`` or ``stages=[stage(epochs=3), ...]``.

    Returns:
        The run; ``run.evaluate("test")`` measures it.
    """
    collection = data if isinstance(data, Collection) else Collection.open(Path(data))
    if loss is not None:
        settings["terms"] = (LossTerm.of(loss),)
    for name in ("terms", "stages"):
        if name in settings:
            settings[name] = tuple(settings[name])
    context = RunContext(device_named(device) if isinstance(device, str) else device, track=track)
    plan = None
    if isinstance(matcher, str):
        preset = find_preset(matcher)
        own = _with_settings(preset.defaults, settings)
    elif isinstance(matcher, Matcher):
        preset = Preset("fit", "", RECIPES["pairs"])
        own = _with_settings(replace(PairsSettings(), matcher=(GivenMatcher.of(matcher),)), settings)
        plan = partial(plan_composition, given=(matcher, inputs or _default_inputs(collection, own, context)))
    else:
        preset = Preset("fit", "", RECIPES["pairs"])
        members = tuple(matcher) if isinstance(matcher, Sequence) else (matcher,)
        own = _with_settings(replace(PairsSettings(), matcher=members), settings)
    run_preset(preset, own, collection, Path(out), resume=resume, context=context, plan=plan, command="calligram.fit")
    return open_run(out)


def _default_inputs(collection: Collection, settings: PairsSettings, context: RunContext) -> Inputs:
    """Return the inputs of the settings' towers: by default pixels, and the words of the training captions."""
    return Towers(settings.image, settings.text, collection.sentences("train").join_equal_texts(), context).inputs


def _with_settings(defaults: Any, settings: dict[str, Any]) -> Any:
    try:
        return replace(defaults, **settings)
    except TypeError as error:
        raise UserError(
            f"{error}; calligram.fit takes the settings of calligram show, nested ones as objects"
        ) from None
