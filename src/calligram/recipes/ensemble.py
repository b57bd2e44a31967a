"""Recipe ``ensemble``: several runs as one matcher, by the mean of their scores."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.features.images.backbones import BackboneInput
from calligram.features.images.region_input import RegionInput
from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import Inputs
from calligram.features.joined_input import JoinedImageInput, JoinedTextInput
from calligram.features.texts.chunker import Chunker, annotated_captions
from calligram.features.texts.text_vectors import TextVectorInput
from calligram.models import catalog
from calligram.models.ensemble import Ensemble, EnsembleSettings, SentencePhraseMatcher, SentencePhraseSettings
from calligram.models.load import INPUTS_FOLDER
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import RunSettings
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


def plan_ensemble(settings: EnsembleRecipe, collection: Collection, around: RunContext) -> Plan:
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
    folder = run / INPUTS_FOLDER
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _differing(run: Path, other: Path) -> str:
    """Which inputs of two runs differ, and what to do about it."""
    one, two = (
        json.loads((folder / INPUTS_FOLDER / "inputs.json").read_text(encoding="utf-8")) for folder in (run, other)
    )
    sides = [name for key, name in (("images", "pictures"), ("texts", "texts")) if one[key] != two[key]]
    found = f"{' and '.join(sides) or 'networks'} than {other}; train both with the same image and text settings"
    parts = [each["images"].get("parts") for each in (one, two)]
    if parts[0] != parts[1]:
        found += (
            ". Of a backbone that is not trained, vse and dual-path see one vector, and matchers of regions and words "
            "the cells of its grid: train it with image.train=true, or train members together with recipe best"
        )
    return found


# Recipe ``combined``: an image-sentence run and a region-phrase run as one matcher (two-branch, Eq. 8).


@dataclass(frozen=True)
class CombinedRecipe(RunSettings):
    """Settings of ``combined``."""

    sentences: Annotated[str, "run folder of an image-sentence matcher: two-branch or cca, on features"] = ""
    phrases: Annotated[str, "run folder of a region-phrase matcher: two-branch-phrases"] = ""
    alpha: Annotated[float, "share of the region-phrase distance; 0.2 is the paper's", (0, 1)] = 0.2
    chunks: Annotated[
        int,
        "captions that noun phrases are learnt from, where the region-phrase run did not learn them",
        (1, 100000000),
    ] = 12000

    @property
    def teachers(self) -> dict[str, str]:
        """Both runs: what they have seen, the combination has."""
        return {name: run for name, run in (("sentences", self.sentences), ("phrases", self.phrases)) if run}


def plan_combined(settings: CombinedRecipe, collection: Collection, around: RunContext) -> Plan:
    """Both matchers as they are, and both their inputs side by side."""
    del around
    for name in ("sentences", "phrases"):
        if not getattr(settings, name):
            raise UserError(f"recipe combined needs --set {name}= with a run folder")
    one, sentences = load_run(Path(settings.sentences).expanduser())
    two, phrases = load_run(Path(settings.phrases).expanduser())
    matcher = SentencePhraseMatcher(
        SentencePhraseSettings(json.dumps(catalog.describe(one)), json.dumps(catalog.describe(two)), settings.alpha)
    )
    # Checked first: without a size of their own, image vectors cannot stand beside regions.
    inputs = _joined(sentences, phrases, getattr(one.settings, "image_dim", 0), settings, collection)
    matcher.sentences.load_state_dict(one.state_dict())
    matcher.phrases.load_state_dict(two.state_dict())
    return Plan(matcher, inputs, (), Loop(settings.seed))


def _joined(
    sentences: Inputs, phrases: Inputs, image_dim: int, settings: CombinedRecipe, collection: Collection
) -> Inputs:
    whole, text = sentences.images, sentences.texts
    if not image_dim or not isinstance(whole, BackboneInput | StoredInput) or not isinstance(text, TextVectorInput):
        raise UserError(f"{settings.sentences} does not score image features with text vectors; take a two-branch run")
    if not isinstance(phrases.images, RegionInput) or not isinstance(phrases.texts, TextVectorInput):
        raise UserError(f"{settings.phrases} does not score regions with phrases; take a two-branch-phrases run")
    chunker = phrases.chunker or Chunker.train(annotated_captions(collection, "train", settings.chunks))
    return Inputs(
        JoinedImageInput(whole, phrases.images, image_dim), JoinedTextInput(text, phrases.texts, chunker), chunker
    )
