"""Recipe ``tags``: a classifier's labels against the words of a text, without any caption (a3vse, Sec. 4.2)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.features.backbone_input import BackboneInput
from calligram.features.backbones import Backbone, pixel_input
from calligram.features.classifier import Classifier
from calligram.features.concepts import ConceptText, Expansion
from calligram.features.inputs import Inputs
from calligram.features.wordnet import HINT, WordNet
from calligram.models.tags import TagMatcher, TagSettings
from calligram.recipes.plan import Plan, Surroundings
from calligram.recipes.run_settings import RunSettings
from calligram.training.loop import Loop

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TagsRecipe(RunSettings):
    """Settings of ``tags``."""

    backbone: Annotated[str, "folder or hub name of a vision model that came with labels"] = ""
    expand: Annotated[
        Expansion, "words that ask for a label: its names, also synonyms (the paper), or also what it is a kind of"
    ] = "synonyms"
    least: Annotated[float, "smallest probability of a label that counts", (0, 1)] = 0.0


def plan(settings: TagsRecipe, collection: Collection, around: Surroundings) -> Plan:
    """The matcher as it is; nothing is trained, and no caption is looked at."""
    del collection
    if not settings.backbone:
        raise UserError("recipe tags needs a classifier: give --set backbone= with the folder or hub name of one")
    backbone = Backbone.load(settings.backbone).to(around.device).eval()
    classifier = Classifier.load(settings.backbone, backbone)
    wordnet = WordNet.find() if settings.expand != "none" else None
    if settings.expand != "none" and wordnet is None:
        log.warning("there is no WordNet here, so labels are asked for by their own names alone; %s", HINT)
    matcher = TagMatcher(TagSettings(classifier.weight.shape[1], len(classifier.labels), settings.least))
    matcher.classifier.load_state_dict({"weight": classifier.weight, "bias": classifier.bias})
    images = BackboneInput(backbone, pixel_input(settings.backbone), Path(settings.backbone).name, "vector")
    texts = ConceptText.of(classifier.labels, settings.expand, wordnet)
    return Plan(matcher.eval(), Inputs(images, texts), (), Loop(settings.seed))
