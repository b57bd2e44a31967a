"""How a recipe becomes a run: the plan of a recipe, the context of a run, and the function that trains."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import calligram
from calligram.data.collection import Collection
from calligram.data.pairing import Pairing
from calligram.data.sparse import EXTRA_IMAGES_KEY, count_annotations, extended, half, half_steps
from calligram.device import commit, device_name, device_named
from calligram.errors import UserError
from calligram.evaluation.recall import encode_pairing, encode_texts, load_pairing, recall_values, recalls_of
from calligram.features.inputs import ImageInput, Inputs, TextInput
from calligram.models.catalog import RUN_FILE, StoredMatcher, load_matcher, read_run_file
from calligram.models.matcher import Matcher
from calligram.progress import Track, silent
from calligram.recipes.catalog import Preset, find_preset
from calligram.recipes.parts.config import as_plain, component_fields, replace_stages, resolve, unchecked
from calligram.training.distributed import Processes, is_single_process
from calligram.training.loop import Evaluate, Loop, Stage, train
from calligram.training.objectives.objective import check_parameter_groups
from calligram.training.runs import METRICS_FILE, Run

if TYPE_CHECKING:
    from calligram.training.loggers import MetricLogger
    from calligram.training.objectives.distillation import Teacher

MIN_DEV_IMAGES = 30
"""below this number of dev images, one image changes recall by several points"""
TEXTS_COMPARED = 1000
"""number of training texts whose word pieces must be the same for a run that starts with the weights of another"""

log = logging.getLogger(__name__)


class Plan(NamedTuple):
    """Everything a run needs."""

    matcher: Matcher
    inputs: Inputs
    stages: tuple[Stage, ...]
    loop: Loop
    fit: Callable[[Evaluate], Matcher] | None = None
    """makes the matcher where there are no stages; its argument measures a candidate on dev"""
    evaluate: Evaluate | None = None
    """measures the matcher on dev; None for retrieval of captions"""
    dev_depth: int | None = None
    """number of candidates per query scored on dev, retrieved by vectors; None for all pairs"""
    hashes: Mapping[str, str] = MappingProxyType({})
    """hashes of training data that depend on more than settings and captions, such as pseudo pairs; empty for none"""


@dataclass(frozen=True)
class RunContext:
    """Where a run takes place: device, processes, and progress display."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    processes: Processes = field(default_factory=Processes)
    track: Track = silent
    loggers: tuple[str, ...] = ()
    """programs that get the metrics besides TensorBoard: ``wandb``, ``mlflow``"""


def train_preset(
    preset: str,
    collection: Collection | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *settings: str,
    resume: bool = False,
) -> dict[str, float]:
    """Train a preset by name, with settings as ``key=value``; return the dev metrics of the best epoch.

    Args:
        collection: a collection, or its folder.
    """
    chosen = find_preset(preset)
    data = collection if isinstance(collection, Collection) else Collection.open(Path(collection))
    return run_preset(chosen, resolve(chosen.defaults, settings), data, Path(out), resume=resume)


def run_preset(
    preset: Preset,
    settings: Any,
    collection: Collection,
    out: Path,
    *,
    resume: bool = False,
    context: RunContext | None = None,
    command: str = "",
    plan: Callable[[Any, Collection, RunContext], Plan] | None = None,
) -> dict[str, float]:
    """Train a preset, with the given settings, into the folder ``out``; return the dev metrics of the best epoch.

    Args:
        plan: replaces the plan of the recipe.
    """
    context = context or RunContext(device_named())
    if context.loggers:
        from calligram.training.loggers import check_loggers

        check_loggers(context.loggers)
    with Run.lock(out) if context.processes.first else contextlib.nullcontext():
        whole, collection = collection, settings.sparse.of(collection, settings.seed, context.device)
        _check_captions(whole, collection, learns=preset.recipe.learns)
        if settings.teachers:
            from calligram.evaluation.seen_captions import refuse_leaks

            refuse_leaks(settings.teachers, whole, collection)
        about = _about(preset, settings, collection, context, command)
        if context.processes.first:
            defaults = {"settings": as_plain(_defaults_of_components(preset, settings)), "teachers": about["teachers"]}
            Run.check(out, about, resume=resume, defaults=defaults, read=read_run_file)
            if resume and not (out / RUN_FILE).is_file():
                log.info("nothing to resume in %s; starting a new run", out)
        with torch.random.fork_rng([]):
            torch.manual_seed(int(settings.seed))
            made = (plan or preset.recipe.plan)(with_half_steps(settings, whole, collection), collection, context)
        about |= {name: found for name, found in made.hashes.items() if found}
        if resume and context.processes.first:
            for name, found in made.hashes.items():
                Run.check_source_hash(out, name, found)
        if settings.sparse.length != "as-set":
            made = made._replace(stages=with_more_epochs(made.stages, epochs_factor(settings, whole, collection)))
        if made.loop.speed == "cached" and made.stages:
            from calligram.training.cached_gradients import with_cached_gradients

            made = made._replace(stages=with_cached_gradients(made.stages))
        for stage in made.stages:  # all stages now: the last one may start hours later
            check_parameter_groups(made.matcher, (*stage.lr_scale, *stage.frozen))
        made.matcher.to(context.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if preset.recipe.learns or _has_captions(whole, "dev"):
            evaluate = made.evaluate or _retrieval_on_dev(made, collection, context)
        else:
            log.warning("%s has no captioned images in split dev: the matcher is not evaluated", whole.folder)
            evaluate = _no_metrics
        # Only now: a recipe that cannot be planned or evaluated leaves no folder behind.
        run = Run.create(out, about) if context.processes.first else Run(out)
        if context.processes.first and made.fit is None and not run.complete:
            run.describe(made.matcher, made.inputs)
        if not made.stages:
            return _run_without_stages(run, made, evaluate, context)
        return train(
            made.matcher, made.stages, run, evaluate, loop=made.loop, processes=context.processes, track=context.track,
            loggers=_open_loggers(run, context),
        )  # fmt: skip


def _open_loggers(run: Run, context: RunContext) -> list[MetricLogger]:
    if not (context.loggers and context.processes.first):
        return []
    from calligram.training.loggers import open_loggers

    return open_loggers(run, context.loggers)


def _defaults_of_components(preset: Preset, settings: Any) -> Any:
    """Return the defaults of a preset, with the components of other settings such as terms.

    A run that is older than a setting lacks it; the default stands for it when the run is resumed.
    """
    found = replace_stages(preset.defaults)
    for item in component_fields(settings):
        of_preset = {type(each): each for each in getattr(found, item.name)}
        own = tuple(of_preset.get(type(each)) or type(each)() for each in getattr(settings, item.name))
        found = unchecked(found, {item.name: own})
    return found


def _check_captions(whole: Collection, sparse: Collection, *, learns: bool) -> None:
    for split in ("train", "dev") if learns else ():
        if not _has_captions(whole, split):
            raise UserError(
                f"collection {whole.folder} has no captioned images in split {split}; training uses train, and dev "
                "to select the best epoch. Caption more images, or give a captions file a column 'split' (train, dev "
                "or test)"
            )
    if learns and not len(sparse.sentences("train").matches):
        raise UserError(f"no training image keeps a caption in {sparse.name}; give a larger sparse.images")


def _has_captions(collection: Collection, split: str) -> bool:
    return bool(collection.splits().get(split)) and len(collection.sentences(split).matches) > 0


def _no_metrics(matcher: Matcher) -> Mapping[str, float]:
    del matcher
    return {}


def _about(
    preset: Preset, settings: Any, collection: Collection, context: RunContext, command: str
) -> dict[str, object]:
    """Return the content of ``run.json``."""
    further = (
        {EXTRA_IMAGES_KEY: list(ids)} if isinstance(ids := collection.manifest.get(EXTRA_IMAGES_KEY), tuple) else {}
    )
    return {
        **further,
        "recipe": preset.recipe.name,
        "preset": preset.name,
        "settings": as_plain(settings),
        "collection": collection.name,
        "collection folder": str(collection.folder.resolve()),
        "content": collection.fingerprint,
        "teachers": _teacher_fingerprints(settings.teachers),
        "commit": commit(),
        "command": command or shlex.join(sys.argv),
        "calligram": calligram.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device_name(context.device),
        "processes": context.processes.count,
    }


def _teacher_fingerprints(teachers: Mapping[str, str]) -> dict[str, str]:
    if not teachers:
        return {}
    from calligram.evaluation.seen_captions import teacher_fingerprints

    return teacher_fingerprints(teachers)


def _retrieval_on_dev(plan: Plan, collection: Collection, context: RunContext) -> Evaluate:
    """Return a function that gives the recalls on dev; the images of dev are decoded once."""
    dev = collection.sentences("dev")
    if len(dev.visuals) < MIN_DEV_IMAGES:
        log.warning(
            "dev has %d captioned images: too few to select the best epoch reliably, and recalls on them are noisy",
            len(dev.visuals),
        )
    loaded = load_pairing(plan.inputs, dev, context.track)

    def evaluate(matcher: Matcher) -> Mapping[str, float]:
        if plan.dev_depth is not None:
            from calligram.evaluation.retrieval import evaluate_retrieval

            found = evaluate_retrieval(matcher, plan.inputs, dev, loaded=loaded, depth=plan.dev_depth).retrieval
            return recall_values(found.i2t, found.t2i)
        return recalls_of(matcher, plan.inputs, loaded, dev.matches, context.track)

    return evaluate


def _run_without_stages(run: Run, plan: Plan, evaluate: Evaluate, context: RunContext) -> dict[str, float]:
    """Fit the matcher if the plan has a fit, evaluate it on dev and save it; a complete run is left as it is."""
    if not context.processes.first:
        return {}
    if run.complete:
        log.info("%s is complete", run.folder)
        return {**run.metrics()[-1]["dev"], "epoch": -1, "step": 0}
    began = time.perf_counter()
    matcher = plan.matcher
    if plan.fit is not None:
        matcher = plan.fit(evaluate).to(context.device)
        run.describe(matcher, plan.inputs)
    found = dict(evaluate(matcher.eval()))
    run.save_best(matcher.state_dict())
    (run.folder / METRICS_FILE).unlink(missing_ok=True)
    run.log({"step": 0, "dev": found})
    run.finish(time.perf_counter() - began)
    return {**found, "epoch": -1, "step": 0}


def with_half_steps(settings: Any, whole: Collection, sparse: Collection) -> Any:
    """Return settings with the steps of an epoch that ``sparse.length=half`` asks for (a3vse, Sec. 4.2).

    Epochs keep their number, and with it warm-up, rates and evaluations on dev.
    """
    if settings.sparse.length != "half" or getattr(settings, "steps", None) != 0:
        return settings
    return replace(settings, steps=half_steps(whole, sparse, settings.batch, settings.epoch_of, settings.texts))


def epochs_factor(settings: Any, whole: Collection, sparse: Collection) -> float:
    """Return the factor on the number of epochs of a run; ``half`` is one of recipes without steps."""
    if settings.sparse.length == "as-set" or (settings.sparse.length == "half" and hasattr(settings, "steps")):
        return 1.0
    share = count_annotations(sparse) / count_annotations(whole)
    return extended(share) if settings.sparse.length == "extended" else half(share)


def with_more_epochs(stages: Sequence[Stage], factor: float) -> tuple[Stage, ...]:
    """Return stages with ``factor`` times the epochs."""
    return tuple(replace(stage, epochs=round(factor * stage.epochs)) for stage in stages)


def load_teacher(run: str, train: Pairing, context: RunContext, images: ImageInput | None = None) -> Teacher:
    """Return the matcher of a run with the encodings of all training items, made from the run's own inputs.

    Args:
        images: image input of the student. If it gives the same pixels, the teacher encodes the images of each batch.
    """
    from calligram.training.objectives.distillation import Teacher

    stored = load_matcher(Path(run).expanduser()).to(context.device)
    matcher = stored.matcher
    loaded = load_pairing(stored.inputs, train, context.track)
    same = images is not None and images.has_pixels_of(stored.inputs.images)
    if same and is_single_process():  # otherwise a process has only its share of the images of a batch
        return Teacher(matcher, None, encode_texts(matcher, loaded.texts, track=context.track))
    return Teacher(matcher, *encode_pairing(matcher, stored.inputs, loaded, context.track))


def load_start(run: str, stored: StoredMatcher, matcher: Matcher, inputs: Inputs, train: Pairing) -> None:
    """Give a matcher the weights of a run: of the whole matcher, or of the first member of an ensemble that fits.

    Args:
        stored: matcher and inputs of the run.

    Raises:
        UserError: when the run has no matcher with the same weights, other frozen networks, or other words.
    """
    here, there = (len(getattr(each, "members", ())) for each in (matcher, stored.matcher))
    candidates = [stored.matcher, *getattr(stored.matcher, "members", ())]
    differences = [_weight_difference(own, matcher) for own in candidates]
    if "" not in differences:
        why = differences[-1]
        if here and here != there:
            why = f"it has {f'an ensemble of {there}' if there else 'one matcher'}, and this run an ensemble of {here}"
        raise UserError(
            f"start={run} has no matcher with the same weights as this run: {why}; take the settings matcher, dim, "
            "image.* and text.* of that run"
        )
    found = candidates[differences.index("")]
    _check_frozen_inputs(run, inputs, stored.inputs)
    if not _have_same_words(inputs.texts, stored.inputs.texts, train.texts.strings[:TEXTS_COMPARED]):
        raise UserError(
            f"start={run} splits texts into other words or pieces; take the text.encoder of that run, or for a matcher "
            "of your own the text input"
        )
    matcher.load_state_dict(found.state_dict())
    log.info("training starts with the weights of %s", run)


def _have_same_words(one: TextInput, two: TextInput, strings: Sequence[str]) -> bool:
    """Whether two inputs give texts the same numbers: by their words, or by some texts where they have none."""
    if one.vocabulary is not None and two.vocabulary is not None:
        return one.vocabulary.words == two.vocabulary.words
    tokens = [(texts.token_input or texts).texts(strings)[0] for texts in (one, two)]
    return torch.equal(*tokens)


def _check_frozen_inputs(run: str, own: Inputs, other: Inputs) -> None:
    """Refuse weights that were trained on the features of another frozen network: they may have the same shapes."""
    for setting, one, two in (
        ("image.backbone", own.images.network, other.images.network),
        ("text.encoder", own.texts.network, other.texts.network),
    ):
        weights = [{} if network is None else network.state_dict() for network in (one, two)]
        if weights[0].keys() != weights[1].keys() or any(
            not torch.equal(weights[0][name].cpu(), weights[1][name].cpu()) for name in weights[0]
        ):
            raise UserError(f"start={run} was trained on features of another network; give the {setting} of that run")
    if own.images.stored_name != other.images.stored_name:
        raise UserError(f"start={run} was trained on other features; give image.features={other.images.stored_name}")


def _weight_difference(one: Matcher, other: Matcher) -> str:
    """Describe the first weight that only one of two matchers has, or with another shape; empty if there is none."""
    there, here = ({name: tuple(weight.shape) for name, weight in own.state_dict().items()} for own in (one, other))
    for name in {**there, **here}:
        if there.get(name) != here.get(name):
            shapes = (f"has the shape {own[name]}" if name in own else "does not exist" for own in (there, here))
            return f"{name} {' there and '.join(shapes)} here"
    return "" if type(one) is type(other) else "the matchers are of different kinds"
