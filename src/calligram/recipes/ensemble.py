"""Recipe ``ensemble``: several runs as one matcher, by the mean of their scores."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.models import catalog
from calligram.models.combine import Ensemble, EnsembleSettings
from calligram.models.stored import INPUTS
from calligram.recipes.plan import Plan, Surroundings
from calligram.recipes.run_settings import RunSettings
from calligram.training.loop import Loop
from calligram.training.runs import load_run


@dataclass(frozen=True)
class EnsembleRecipe(RunSettings):
    """Settings of ``ensemble``."""

    runs: Annotated[tuple[str, ...], "run folders, separated by commas, trained on the same inputs"] = ()

    @property
    def teachers(self) -> dict[str, str]:
        """The members: what they have seen, the ensemble has."""
        return {f"runs[{place}]": run for place, run in enumerate(self.runs)}


def plan(settings: EnsembleRecipe, collection: Collection, around: Surroundings) -> Plan:
    """All matchers as they are, with the inputs they share."""
    del collection, around
    if len(settings.runs) < 2:
        raise UserError("recipe ensemble needs --set runs= with two or more run folders, separated by commas")
    folders = [Path(run).expanduser() for run in settings.runs]
    real = [folder.resolve() for folder in folders]
    if twice := [folder for place, folder in enumerate(folders) if real[place] in real[:place]]:
        raise UserError(f"{twice[0]} is there twice among runs=, and would only weigh more; give different runs")
    found = [load_run(folder) for folder in folders]
    for folder, (member, _) in zip(folders, found, strict=True):
        if not hasattr(member.settings, "dim"):
            raise UserError(f"{folder} has a matcher without a joint space of a set size (dim); take another run")
        if _inputs(folder) != _inputs(folders[0]):
            raise UserError(f"{folder} is fed other {_differing(folder, folders[0])}")
    matcher = Ensemble(EnsembleSettings(tuple(json.dumps(catalog.describe(member)) for member, _ in found)))
    for own, (member, _) in zip(matcher.members, found, strict=True):
        own.load_state_dict(member.state_dict())
    return Plan(matcher, found[0][1], (), Loop(settings.seed))


def _inputs(run: Path) -> dict[str, bytes]:
    """What lies in a run's inputs, by name."""
    folder = run / INPUTS
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _differing(run: Path, other: Path) -> str:
    """Which inputs of two runs differ, and what to do about it."""
    one, two = (json.loads((folder / INPUTS / "inputs.json").read_text(encoding="utf-8")) for folder in (run, other))
    sides = [name for key, name in (("images", "pictures"), ("texts", "texts")) if one[key] != two[key]]
    found = f"{' and '.join(sides) or 'networks'} than {other}; train both with the same image and text settings"
    parts = [each["images"].get("parts") for each in (one, two)]
    if parts[0] != parts[1]:
        found += (
            ". Of a backbone that is not trained, vse and dual-path see one vector, and matchers of regions and words "
            "the cells of its grid: train it with image.train=true, or train members together with recipe best"
        )
    return found
