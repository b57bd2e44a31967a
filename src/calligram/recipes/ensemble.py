"""Recipes of several runs as one matcher: ``ensemble`` (mean of scores) and ``combined`` (two-branch, Eq. 8)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.features.inputs import Inputs
from calligram.features.joined_input import JoinedImageInput, JoinedTextInput
from calligram.features.texts.chunker import Chunker, annotated_captions
from calligram.models import catalog
from calligram.models.catalog import INPUTS_FOLDER
from calligram.models.ensemble import Ensemble, EnsembleSettings, SentencePhraseMatcher, SentencePhraseSettings
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.run_settings import RunSettings
from calligram.training.loop import Loop
from calligram.training.runs import load_run


@dataclass(frozen=True)
class EnsembleRunSettings(RunSettings):
    """Settings of ``ensemble``."""

    runs: Annotated[tuple[str, ...], "folders of runs with the same inputs, separated by commas"] = ()

    @property
    def teachers(self) -> dict[str, str]:
        """The ensemble members, whose training captions become those of the ensemble."""
        return {f"runs[{place}]": run for place, run in enumerate(self.runs)}


def plan_ensemble(settings: EnsembleRunSettings, collection: Collection, context: RunContext) -> Plan:
    """Return the ensemble of all runs, with the inputs that they share."""
    del collection, context
    if len(settings.runs) < 2:
        raise UserError("recipe ensemble needs --set runs= with two or more run folders, separated by commas")
    folders = [Path(run).expanduser() for run in settings.runs]
    real = [folder.resolve() for folder in folders]
    if twice := [folder for place, folder in enumerate(folders) if real[place] in real[:place]]:
        raise UserError(f"runs= names {twice[0]} twice, which only raises its weight; give different runs")
    found = [load_run(folder) for folder in folders]
    for folder in folders:
        if _input_files(folder) != _input_files(folders[0]):
            raise UserError(f"{folder} has other {_differing_inputs(folder, folders[0])}")
    matcher = Ensemble(EnsembleSettings(tuple(json.dumps(catalog.describe(member)) for member, _ in found)))
    for own, (member, _) in zip(matcher.members, found, strict=True):
        own.load_state_dict(member.state_dict())
    return Plan(matcher, found[0][1], (), Loop(settings.seed))


def _input_files(run: Path) -> dict[str, bytes]:
    """Return the content of the files of a run's inputs, by name."""
    folder = run / INPUTS_FOLDER
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _differing_inputs(run: Path, other: Path) -> str:
    """Describe the difference between the inputs of two runs, and how to remove it."""
    one, two = (
        json.loads((folder / INPUTS_FOLDER / "inputs.json").read_text(encoding="utf-8")) for folder in (run, other)
    )
    differing = [name for key, name in (("images", "images"), ("texts", "texts")) if one[key] != two[key]]
    message = (
        f"{' and '.join(differing) or 'networks'} as input than {other}; train both with the same image and text "
        "settings"
    )
    parts = [each["images"].get("parts") for each in (one, two)]
    if parts[0] != parts[1]:
        message += (
            ". From a backbone that is not trained, vse and dual-path take one vector, and matchers of regions and "
            "words take the cells of its grid: train the backbone with image.train=true, or train the members "
            "together, with several names in matcher="
        )
    return message


@dataclass(frozen=True)
class CombinedSettings(RunSettings):
    """Settings of ``combined``."""

    sentences: Annotated[str, "folder of an image-sentence run: two-branch or cca, on image features"] = ""
    phrases: Annotated[str, "folder of a region-phrase run: two-branch-phrases"] = ""
    alpha: Annotated[float, "weight of the region-phrase distance; 0.2 in the paper", (0, 1)] = 0.2
    chunker_captions: Annotated[
        int,
        "number of captions that train the noun-phrase chunker, where the region-phrase run has none",
        (1, 100000000),
    ] = 12000

    @property
    def teachers(self) -> dict[str, str]:
        """Both runs, whose training captions become those of the combination."""
        return {name: run for name, run in (("sentences", self.sentences), ("phrases", self.phrases)) if run}


def plan_combined(settings: CombinedSettings, collection: Collection, context: RunContext) -> Plan:
    """Return the combination of both matchers, with the inputs of both."""
    del context
    for name in ("sentences", "phrases"):
        if not getattr(settings, name):
            raise UserError(f"recipe combined needs --set {name}= with a run folder")
    one, sentences = load_run(Path(settings.sentences).expanduser())
    two, phrases = load_run(Path(settings.phrases).expanduser())
    matcher = SentencePhraseMatcher(
        SentencePhraseSettings(json.dumps(catalog.describe(one)), json.dumps(catalog.describe(two)), settings.alpha)
    )
    # Checked before weights are loaded: image vectors of unknown size cannot be joined with regions.
    inputs = _join_inputs(sentences, phrases, getattr(one, "image_dim", 0), settings, collection)
    matcher.sentences.load_state_dict(one.state_dict())
    matcher.phrases.load_state_dict(two.state_dict())
    return Plan(matcher, inputs, (), Loop(settings.seed))


def _join_inputs(
    sentences: Inputs, phrases: Inputs, image_dim: int, settings: CombinedSettings, collection: Collection
) -> Inputs:
    whole, text, regions = sentences.images, sentences.texts, phrases.images.region_input
    has_features = whole.network is not None or whole.stored_name is not None
    if not image_dim or not has_features or text.vector_size is None:
        raise UserError(f"{settings.sentences} does not score image features with text vectors; give a two-branch run")
    if regions is None or phrases.texts.vector_size is None:
        raise UserError(f"{settings.phrases} does not score regions with phrases; give a two-branch-phrases run")
    chunker = phrases.chunker or Chunker.train(annotated_captions(collection, "train", settings.chunker_captions))
    return Inputs(JoinedImageInput(whole, regions, image_dim), JoinedTextInput(text, phrases.texts, chunker), chunker)
