"""Recipe ``cca``: canonical correlation analysis of stored image features and text vectors, in one pass."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from calligram.data.collection import Collection
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.evaluation.encode import load_pairing
from calligram.features.images.backbones import Backbone, BackboneInput, pixel_input
from calligram.features.images.stored_input import real_parts
from calligram.features.inputs import Inputs
from calligram.features.pseudo.concepts import ConceptInput, Expansion
from calligram.features.pseudo.image_words import LabelClassifier
from calligram.features.pseudo.wordnet import INSTALL_HINT, WordNet
from calligram.features.texts.pca import Covariance
from calligram.models.cca import CCA, CCASettings
from calligram.models.layers.part_towers import pool_states
from calligram.models.matcher import Matcher
from calligram.models.tags import TagMatcher, TagSettings
from calligram.progress import Track
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import RunSettings
from calligram.recipes.parts.towers import ImageSettings, VectorTextSettings, fitted_text, image_input, need_vectors
from calligram.training.loop import Evaluate, Loop

log = logging.getLogger(__name__)

PAIRS = 2048
"""pairs whose products are added at a time"""


@dataclass(frozen=True)
class CCARecipe(RunSettings):
    """Settings of ``cca``."""

    dim: Annotated[int, "canonical directions to keep; 0 for all", (0, 65536)] = 0
    eta: Annotated[tuple[float, ...], "shares of the largest variance to add; dev chooses, by side", (0, 1000)] = (
        1e-4, 1e-3, 1e-2, 1e-1,
    )  # fmt: skip
    image: ImageSettings = field(default_factory=ImageSettings)
    text: VectorTextSettings = field(default_factory=VectorTextSettings)

    def __post_init__(self) -> None:
        if not self.eta:
            raise UserError("eta needs at least one value, such as 0.001")
        if self.image.train:
            raise UserError("cca fits features and trains no network; leave image.train=false")


def plan_cca(settings: CCARecipe, collection: Collection, around: RunContext) -> Plan:
    """Inputs, and a fit instead of stages."""
    need_vectors(settings.image)
    train = collection.sentences("train").join_equal_texts()
    backbone = Backbone.load(settings.image.backbone).to(around.device) if settings.image.backbone else None
    text = fitted_text(settings.text, train.texts.strings, around.track, train.visuals.pictures.cache)
    inputs = Inputs(image_input(settings.image, backbone), text)

    def fit(evaluate: Evaluate) -> Matcher:
        covariance = Covariance()
        for images, texts in matching_vectors(inputs, train, around.track):
            covariance.add(images, texts)
        # Of each side its own: Fisher vectors have far more weak directions than image features.
        candidates = [CCA.from_covariance(covariance, settings.dim, *etas) for etas in product(settings.eta, repeat=2)]
        if len(candidates) == 1:
            return candidates[0]
        found = [evaluate(matcher.to(around.device))["rsum"] for matcher in candidates]
        for matcher, rsum in zip(candidates, found, strict=True):
            log.info("eta %g and %g: dev rsum %.1f", matcher.settings.eta, matcher.settings.text_eta, rsum)
        return candidates[int(np.argmax(found))]

    return Plan(CCA(CCASettings(1, text.dim, 1, settings.eta[0])), inputs, (), Loop(settings.seed), fit)


def matching_vectors(inputs: Inputs, pairing: Pairing, track: Track) -> Iterator[tuple[Tensor, Tensor]]:
    """Vectors of all matching pairs, a few thousand at a time; several parts of an image are averaged."""
    loaded = load_pairing(inputs, pairing, track)
    of_image, of_text = pairing.matches.pairs()
    starts = range(0, len(of_image), PAIRS)
    for start in track(starts, "adding up covariances", len(starts)):
        part = slice(start, start + PAIRS)
        distinct, back = np.unique(of_image[part], return_inverse=True)
        images = inputs.images.finish(loaded.images.take(distinct))
        if images.ndim == 3:
            images = pool_states(images, real_parts(images), "mean")
        yield images[torch.from_numpy(back)], loaded.texts.take(of_text[part])[0]


# Recipe ``tags``: a classifier's labels against the words of a text, without any caption (a3vse, Sec. 4.2).


@dataclass(frozen=True)
class TagsRecipe(RunSettings):
    """Settings of ``tags``."""

    backbone: Annotated[str, "folder or hub name of a vision model that came with labels"] = ""
    expand: Annotated[
        Expansion, "words that ask for a label: its names, also synonyms (the paper), or also what it is a kind of"
    ] = "synonyms"
    least: Annotated[float, "smallest probability of a label that counts", (0, 1)] = 0.0


def plan_tags(settings: TagsRecipe, collection: Collection, around: RunContext) -> Plan:
    """The matcher as it is; nothing is trained, and no caption is looked at."""
    del collection
    if not settings.backbone:
        raise UserError("recipe tags needs a classifier: give --set backbone= with the folder or hub name of one")
    backbone = Backbone.load(settings.backbone).to(around.device).eval()
    classifier = LabelClassifier.load(settings.backbone, backbone)
    wordnet = WordNet.find() if settings.expand != "none" else None
    if settings.expand != "none" and wordnet is None:
        log.warning("there is no WordNet here, so labels are asked for by their own names alone; %s", INSTALL_HINT)
    matcher = TagMatcher(TagSettings(classifier.weight.shape[1], len(classifier.labels), settings.least))
    matcher.classifier.load_state_dict({"weight": classifier.weight, "bias": classifier.bias})
    images = BackboneInput(backbone, pixel_input(settings.backbone), Path(settings.backbone).name, "vector")
    texts = ConceptInput.from_labels(classifier.labels, settings.expand, wordnet)
    return Plan(matcher.eval(), Inputs(images, texts), (), Loop(settings.seed))
