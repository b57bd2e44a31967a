"""What a recipe makes of its settings and a collection, and how that becomes a run."""

from __future__ import annotations

import logging
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

import calligram
from calligram.data.collection import Collection
from calligram.data.sparse import EXTRA_IMAGES_KEY
from calligram.errors import UserError
from calligram.evaluation.encode import load_pairing
from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.features.inputs import Inputs
from calligram.models.load import WEIGHTS_FILE
from calligram.models.matcher import Matcher
from calligram.progress import Track, silent
from calligram.recipes.parts.config import as_plain, resolve
from calligram.recipes.parts.sparse import epochs_factor, lengthened
from calligram.recipes.parts.teachers import fingerprints, refuse_leaks
from calligram.training.distributed import Processes
from calligram.training.loop import Evaluate, Loop, Stage, train
from calligram.training.runs import METRICS_FILE, Run
from calligram.training.stages import check_parameter_groups

# Which state of the code, and which files beside it, a number comes from.

ASSETS = "CALLIGRAM_ASSETS"
"""The one environment variable: a folder with ``flickr8k/``, ``models/`` and ``text/``."""
COMMIT = Path(calligram.__file__).parent / "COMMIT"
"""names the commit where the code was copied without its history"""


def commit() -> str:
    """What the file ``COMMIT`` says, else the checked-out commit, with a mark when files differ from it."""
    if COMMIT.is_file():
        return COMMIT.read_text(encoding="utf-8").strip()
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10"],
            cwd=COMMIT.parent, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()


def with_assets_named(text: str) -> str:
    """Paths of assets written with their variable, so that a recorded line holds on any machine."""
    assets = os.environ.get(ASSETS)
    return text.replace(str(Path(assets).resolve()), f"${ASSETS}").replace(assets, f"${ASSETS}") if assets else text


def with_assets_found(text: str) -> str:
    """The reverse: the variable replaced by where the assets are."""
    if f"${ASSETS}" not in text:
        return text
    if ASSETS not in os.environ:
        raise UserError(f"'{text}' needs {ASSETS}: set it to a folder with flickr8k/, models/ and text/")
    return text.replace(f"${ASSETS}", os.environ[ASSETS])


log = logging.getLogger(__name__)

FEW = 30
"""images of dev under which its recalls move by several points with each of them"""


class Plan(NamedTuple):
    """Everything a run needs."""

    matcher: Matcher
    inputs: Inputs
    stages: tuple[Stage, ...]
    loop: Loop
    fit: Callable[[Evaluate], Matcher] | None = None
    """makes the matcher, in place of the one above, where there are no stages; it chooses by what it is handed"""
    evaluate: Evaluate | None = None
    """what dev is measured by, where that is not retrieval of captions"""
    dev_depth: int | None = None
    """candidates of each query of dev that are scored, found by vectors; None for all pairs"""
    pseudo: str = ""
    """a hash of pairs that machines made, which depend on more than settings and captions; empty without any"""


@dataclass(frozen=True)
class RunContext:
    """Where a run takes place."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    processes: Processes = field(default_factory=Processes)
    track: Track = silent


@dataclass(frozen=True)
class Recipe:
    """A named way to train."""

    name: str
    about: str
    defaults: Any
    """the recipe's settings dataclass with its default values"""
    plan: Callable[[Any, Collection, RunContext], Plan]
    learns: bool = True
    """whether it needs captioned images in train, and in dev to choose by"""


def device_named(name: str = "auto") -> torch.device:
    """A device by name; ``auto`` is the accelerator if there is one, this process's own where there are several."""
    if name == "auto":
        local = os.environ.get("LOCAL_RANK", "0")
        return torch.device(f"cuda:{local}" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device '{name}'; known: auto, cpu, cuda, cuda:0, cuda:1, ...") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device '{name}' is not there: this machine's torch sees no CUDA device; use --device cpu")
    return device


def run_recipe(
    recipe: Recipe,
    settings: Any,
    collection: Collection,
    out: Path,
    *,
    resume: bool = False,
    around: RunContext | None = None,
    command: str = "",
) -> dict[str, float]:
    """Train a recipe into the folder ``out``; returns the dev metrics of the best epoch."""
    around = around or RunContext(device_named())
    whole, collection = collection, settings.sparse.of(collection, settings.seed, around.device)
    _check_captions(whole, collection, learns=recipe.learns)
    refuse_leaks(settings.teachers, whole, collection)
    about = _about(recipe, settings, collection, around, command)
    if around.processes.first:
        defaults = {"settings": as_plain(recipe.defaults), "teachers": about["teachers"]}
        Run.check(out, about, resume=resume, defaults=defaults)
        if resume and not out.exists():
            log.info("nothing to resume in %s; starting", out)
    with torch.random.fork_rng([]):
        torch.manual_seed(int(settings.seed))
        plan = recipe.plan(settings, collection, around)
    if plan.pseudo:
        about["pseudo pairs"] = plan.pseudo
    if resume and around.processes.first:
        Run.check_source_hash(out, "pseudo pairs", plan.pseudo)
    plan = plan._replace(stages=lengthened(plan.stages, epochs_factor(settings, whole, collection)))
    for stage in plan.stages:  # of all of them: the last may begin hours later
        check_parameter_groups(plan.matcher, (*stage.lr_scale, *stage.frozen))
    plan.matcher.to(around.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if recipe.learns or _captioned(whole, "dev"):
        evaluate = plan.evaluate or _measures_dev(plan, collection, around)
    else:
        log.warning("%s has no captioned images in split dev: the matcher is not measured", whole.folder)
        evaluate = _measures_nothing
    # Only now: a recipe that could not be planned or measured leaves no folder behind.
    run = Run.create(out, about) if around.processes.first else Run(out)
    if around.processes.first and plan.fit is None:
        run.describe(plan.matcher, plan.inputs)
    if not plan.stages:
        return _without_stages(run, plan, evaluate, around)
    return train(
        plan.matcher, plan.stages, run, evaluate, loop=plan.loop, processes=around.processes, track=around.track
    )


def _check_captions(whole: Collection, sparse: Collection, *, learns: bool) -> None:
    for split in ("train", "dev") if learns else ():
        if not _captioned(whole, split):
            raise UserError(
                f"collection {whole.folder} has no captioned images in split {split}; training learns from train "
                "and chooses on dev. Caption more images, or give a captions file a column 'split' (train, dev or test)"
            )
    if learns and not len(sparse.sentences("train").matches):
        raise UserError(f"no training image keeps a caption in {sparse.name}; give a larger sparse.images")


def _captioned(collection: Collection, split: str) -> bool:
    return bool(collection.splits().get(split)) and len(collection.sentences(split).matches) > 0


def _measures_nothing(matcher: Matcher) -> Mapping[str, float]:
    del matcher
    return {}


def _about(
    recipe: Recipe, settings: Any, collection: Collection, around: RunContext, command: str
) -> dict[str, object]:
    further = (
        {EXTRA_IMAGES_KEY: list(ids)} if isinstance(ids := collection.manifest.get(EXTRA_IMAGES_KEY), tuple) else {}
    )
    return {
        **further,
        "recipe": recipe.name,
        "settings": as_plain(settings),
        "collection": collection.name,
        "content": collection.fingerprint,
        "teachers": fingerprints(settings.teachers),
        "commit": commit(),
        "command": command or shlex.join(sys.argv),
        "calligram": calligram.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device_name(around.device),
    }


def _measures_dev(plan: Plan, collection: Collection, around: RunContext) -> Evaluate:
    """A function that gives the recalls on dev; its pictures are decoded once."""
    dev = collection.sentences("dev")
    if len(dev.visuals) < FEW:
        log.warning(
            "dev has %d captioned images: which epoch is best is chosen almost by chance, and its figures say little",
            len(dev.visuals),
        )
    loaded = load_pairing(plan.inputs, dev, around.track)

    def evaluate(matcher: Matcher) -> Mapping[str, float]:
        found = evaluate_retrieval(matcher, plan.inputs, dev, loaded=loaded, depth=plan.dev_depth).retrieval
        return {
            "rsum": found.rsum,
            **{f"i2t_r{k}": getattr(found.i2t, f"r{k}") for k in (1, 5, 10)},
            **{f"t2i_r{k}": getattr(found.t2i, f"r{k}") for k in (1, 5, 10)},
        }

    return evaluate


def _without_stages(run: Run, plan: Plan, evaluate: Evaluate, around: RunContext) -> dict[str, float]:
    """A run without training: fitted where there is something to fit, measured and saved; nothing if that is done."""
    if not around.processes.first:
        return {}
    if "seconds" in run.about and (run.folder / WEIGHTS_FILE).is_file():
        log.info("%s is complete", run.folder)
        return {**run.metrics()[-1]["dev"], "epoch": -1, "step": 0}
    began = time.perf_counter()
    matcher = plan.matcher
    if plan.fit is not None:
        matcher = plan.fit(evaluate).to(around.device)
        run.describe(matcher, plan.inputs)
    found = dict(evaluate(matcher.eval()))
    run.save_best(matcher.state_dict())
    (run.folder / METRICS_FILE).unlink(missing_ok=True)
    run.log({"step": 0, "dev": found})
    run.finish(time.perf_counter() - began)
    return {**found, "epoch": -1, "step": 0}


def train_recipe(
    recipe: str, collection: Collection, out: str | os.PathLike[str], *settings: str, resume: bool = False
) -> dict[str, float]:
    """Train a recipe by name, with settings as ``key=value``; returns the dev metrics of the best epoch."""
    from calligram.recipes.catalog import find_recipe

    chosen = find_recipe(recipe)
    return run_recipe(chosen, resolve(chosen.defaults, settings), collection, Path(out), resume=resume)


def device_name(device: torch.device) -> str:
    """What results call the hardware."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} CPU threads ({platform.machine()})"
