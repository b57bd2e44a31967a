"""Training from Python: ``calligram.fit`` trains a composition of settings, or a matcher that the caller made."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import torch

from calligram.data.collection import Collection
from calligram.device import device_named
from calligram.errors import UserError, unknown
from calligram.evaluation.trained_run import TrainedRun, open_run
from calligram.features.inputs import Inputs
from calligram.models.matcher import Matcher
from calligram.progress import Track, silent
from calligram.recipes.catalog import RECIPES, Preset, find_preset
from calligram.recipes.pairs import MATCHER_SETTINGS, GivenMatcher, PairsSettings, plan_composition
from calligram.recipes.parts.config import component_names, replace_stages, with_values
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.recipes.parts.run_settings import STAGE_KEYS, STAGES, StageSettings, declared_settings, parse
from calligram.recipes.parts.terms import TERMS, Term, TermContext
from calligram.recipes.parts.tower_settings import Towers
from calligram.training.objectives.objective import Loss, LossObjective, Objective

S = TypeVar("S")

READ_WITH_INPUTS = {
    "image": ("crop", "flip", "jitter", "dropout", "region_dropout"),
    "text": ("word_dropout",),
}
"""settings of the towers that training reads where the caller made the inputs"""


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


def fit(
    matcher: Matcher | str | Any | Sequence[Any],
    data: Collection | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    inputs: Inputs | None = None,
    loss: Loss | None = None,
    changes: Mapping[str, object] | None = None,
    resume: bool = False,
    device: str | torch.device = "auto",
    track: Track = silent,
    loggers: Sequence[str] = (),
    **settings: Any,
) -> TrainedRun:
    """Train a matcher into the folder ``out`` and return the run.

    Args:
        matcher: a matcher object; or settings of a matcher, such as ``SCANSettings(direction="i2t")``, or several of
            them for an ensemble; or the name of a preset, such as ``"aoq"``.
        data: a collection, or its folder.
        inputs: inputs of a matcher object; where they are not given, pixels and words of the training captions, as the
            settings ``image`` and ``text`` say.
        loss: a function of scores (A, C) and targets (A, C) in place of ``terms``.
        changes: further settings by the keys of ``calligram show``, such as ``{"offline.texts": 300}``.
        resume: continue the run in ``out``.
        loggers: programs that get the metrics besides TensorBoard: ``wandb``, ``mlflow``.
        settings: further settings by name, such as ``epochs=3``, ``lr=1e-3``, ``image=ImageSettings(...)``,
            ``terms=[InfoNCE(), Instance(weight=0.5)]`` or ``stages=[stage(epochs=3), ...]``. A term may also be a name.

    Returns:
        The run; ``run.evaluate("test")`` measures it.
    """
    collection = data if isinstance(data, Collection) else Collection.open(Path(data))
    if loss is not None:
        if "terms" in settings:
            raise UserError("calligram.fit takes a loss or terms, not both")
        settings["terms"] = (LossTerm.of(loss),)
    if "terms" in settings:
        settings["terms"] = _objects(settings["terms"], TERMS, "term")
    if STAGES in settings:
        stages = settings[STAGES]
        if not isinstance(stages, Sequence) or not all(isinstance(each, StageSettings) for each in stages):
            raise UserError("stages takes a list of calligram.stage(...)")
        settings[STAGES] = tuple(stages)
    context = RunContext(
        device_named(device) if isinstance(device, str) else device, track=track, loggers=tuple(loggers)
    )
    plan = None
    if isinstance(matcher, str):
        preset = find_preset(matcher)
        own = settings_from_python(preset.defaults, settings, changes)
    elif isinstance(matcher, Matcher):
        preset = Preset("fit", "", RECIPES["pairs"])
        defaults = replace(PairsSettings(), matcher=(GivenMatcher.of(matcher),))
        own = settings_from_python(defaults, settings, changes)
        _refuse_settings_without_effect(own, defaults, inputs_given=inputs is not None)
        plan = partial(plan_composition, given=(matcher, inputs or _default_inputs(collection, own, context)))
    else:
        preset = Preset("fit", "", RECIPES["pairs"])
        members = _objects(matcher, MATCHER_SETTINGS, "matcher")
        own = settings_from_python(replace(PairsSettings(), matcher=members), settings, changes)
    run_preset(preset, own, collection, Path(out), resume=resume, context=context, plan=plan, command="calligram.fit")
    return open_run(out)


def _refuse_settings_without_effect(own: PairsSettings, defaults: PairsSettings, *, inputs_given: bool) -> None:
    """Refuse settings that neither a given matcher object nor given inputs read.

    Args:
        inputs_given: whether the caller gave inputs.
    """
    if own.dim != defaults.dim:
        raise UserError("dim has no effect with a matcher object, which has its size already; leave it out")
    for name, read in READ_WITH_INPUTS.items() if inputs_given else ():
        one, two = getattr(own, name), getattr(defaults, name)
        changed = [f.name for f in fields(one) if f.name not in read and getattr(one, f.name) != getattr(two, f.name)]
        if changed:
            raise UserError(
                f"{name}.{changed[0]} has no effect, because calligram.fit got inputs; make the inputs with it, or "
                f"leave it out. {name} settings that are read: {', '.join(read)}"
            )


def _default_inputs(collection: Collection, settings: PairsSettings, context: RunContext) -> Inputs:
    """Return the inputs of the settings' towers: by default pixels, and the words of the training captions."""
    train = collection.sentences("train").join_equal_texts()
    return Towers(settings.image, settings.text, train, context, seed=settings.seed).inputs


def _objects(given: Any, catalog: Any, kind: str) -> tuple[Any, ...]:
    """Return settings objects of matchers or terms, given as objects or by name."""
    found = []
    for each in given if isinstance(given, Sequence) and not isinstance(given, str) else (given,):
        if isinstance(each, str) and each not in catalog:
            raise unknown(kind, each, catalog)
        own = catalog[each]() if isinstance(each, str) else each
        if isinstance(own, type) or not is_dataclass(own) or (kind == "term" and not isinstance(own, Term)):
            raise UserError(f"calligram.fit takes a {kind} as a settings object or by name, got {own!r}")
        found.append(own)
    return tuple(found)


def settings_from_python(defaults: S, settings: Mapping[str, Any], changes: Mapping[str, object] | None = None) -> S:
    """Return settings with other values, which are checked as those of the command line are.

    Args:
        settings: values by the name of a field; nested settings are objects.
        changes: values by dotted key.

    Raises:
        UserError: for an unknown name or key, or a value that the setting does not accept.
    """
    names = [item.name for item in fields(defaults)]  # type: ignore[arg-type]
    for name in settings:
        if name not in names:
            raise UserError(
                f"{unknown('setting', name, names)}. Settings of a matcher, a term or a tower are arguments of its "
                "object, such as image=ImageSettings(size=128)"
            )
    own = _checked(replace(defaults, **settings))  # type: ignore[type-var]
    return with_values(own, list(changes.items())) if changes else own


def _checked(settings: S, prefix: str = "") -> S:
    """Return settings whose values have the declared types; refuse others."""
    own: dict[str, Any] = {}
    for item, setting in declared_settings(settings, prefix):
        value = setting.default
        if "components" in item.metadata:
            names = component_names(item, value)  # type: ignore[arg-type]
            own[item.name] = tuple(_checked(each, f"{n}.") for n, each in zip(names, value, strict=True))  # type: ignore[call-overload]
        elif isinstance(setting.type, type) and is_dataclass(setting.type):
            if not isinstance(value, setting.type):
                raise UserError(
                    f"setting {setting.key} takes an object of the class {setting.type.__name__}, got {value!r}"
                )
            own[item.name] = _checked(value, f"{setting.key}.")
        elif setting.description:
            own[item.name] = parse(value, setting)
    found = replace(settings, **own)  # type: ignore[type-var]
    stages = getattr(settings, STAGES, ())
    given = [
        (f"{STAGES}.{number}.{key}", value)
        for number, each in enumerate(stages, 1)
        for key, value in (*((key, getattr(each, key)) for key in STAGE_KEYS), *each.changes)
    ]
    return with_values(replace_stages(found), given) if given else found
