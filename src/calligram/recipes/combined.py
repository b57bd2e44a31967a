"""Recipe ``combined``: an image-sentence run and a region-phrase run as one matcher (two-branch, Eq. 8)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.features.backbone_input import BackboneInput
from calligram.features.chunker import Chunker, annotated_captions
from calligram.features.inputs import Inputs
from calligram.features.joined_input import JoinedImages, JoinedTexts
from calligram.features.region_input import RegionInput
from calligram.features.stored import StoredInput
from calligram.features.text_vectors import VectorText
from calligram.models import catalog
from calligram.models.combine import Weighted, WeightedSettings
from calligram.recipes.plan import Plan, Surroundings
from calligram.recipes.run_settings import RunSettings
from calligram.training.loop import Loop
from calligram.training.runs import load_run


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


def plan(settings: CombinedRecipe, collection: Collection, around: Surroundings) -> Plan:
    """Both matchers as they are, and both their inputs side by side."""
    del around
    for name in ("sentences", "phrases"):
        if not getattr(settings, name):
            raise UserError(f"recipe combined needs --set {name}= with a run folder")
    one, sentences = load_run(Path(settings.sentences).expanduser())
    two, phrases = load_run(Path(settings.phrases).expanduser())
    matcher = Weighted(
        WeightedSettings(json.dumps(catalog.describe(one)), json.dumps(catalog.describe(two)), settings.alpha)
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
    if not image_dim or not isinstance(whole, BackboneInput | StoredInput) or not isinstance(text, VectorText):
        raise UserError(f"{settings.sentences} does not score image features with text vectors; take a two-branch run")
    if not isinstance(phrases.images, RegionInput) or not isinstance(phrases.texts, VectorText):
        raise UserError(f"{settings.phrases} does not score regions with phrases; take a two-branch-phrases run")
    chunker = phrases.chunker or Chunker.learn(annotated_captions(collection, "train", settings.chunks))
    return Inputs(JoinedImages(whole, phrases.images, image_dim), JoinedTexts(text, phrases.texts, chunker), chunker)
