"""Baselines: ``cca``, a linear fit of image features and text vectors, and ``tags``, which needs no captions."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from calligram.data.collection import Collection
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.evaluation.recall import load_pairing
from calligram.features.images.backbones import Backbone, BackboneInput, pixel_input
from calligram.features.images.stored_input import real_parts
from calligram.features.inputs import Inputs
from calligram.features.pseudo.concepts import ConceptInput, Expansion
from calligram.features.pseudo.image_words import LabelClassifier
from calligram.features.pseudo.wordnet import INSTALL_HINT, WordNet
from calligram.features.texts.pca import Covariance
from calligram.models.cca import CCA, CCASettings, select_cca
from calligram.models.layers.networks import pool_states
from calligram.models.matcher import Matcher
from calligram.models.tags import TagMatcher, TagSettings
from calligram.progress import Track
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.run_settings import RunSettings
from calligram.recipes.parts.tower_settings import ImageSettings, TextSettings, Towers, need_features
from calligram.training.loop import Evaluate, Loop

log = logging.getLogger(__name__)

COVARIANCE_PAIRS = 2048
"""number of pairs that are added to the covariance at once"""


@dataclass(frozen=True)
class CCAFit:
    """Settings of the fit of CCA."""

    eta: Annotated[
        tuple[float, ...],
        "regularization, as shares of the largest variance; the best value of each modality is selected on dev",
        (0, 1000),
    ] = (1e-4, 1e-3, 1e-2, 1e-1)

    def __post_init__(self) -> None:
        if not self.eta:
            raise UserError("cca.eta needs at least one value, such as 0.001")


@dataclass(frozen=True)
class CCARunSettings(RunSettings):
    """Settings of recipe ``cca``."""

    dim: Annotated[int, "number of canonical directions that are kept; 0 for all", (0, 65536)] = 0
    cca: CCAFit = field(default_factory=CCAFit)
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=lambda: TextSettings(network="vectors"))

    def __post_init__(self) -> None:
        if self.image.train:
            raise UserError("recipe cca fits features and trains no network; leave image.train=false")
        if self.text.encoder or self.text.network != "vectors":
            raise UserError("recipe cca fits text vectors; leave text.network=vectors and give no text.encoder")


def plan_cca(settings: CCARunSettings, collection: Collection, context: RunContext) -> Plan:
    """Return inputs, and a fit instead of stages."""
    need_features(settings.image, "recipe cca")
    train = collection.sentences("train").join_equal_texts()
    towers = Towers(settings.image, settings.text, train, context, seed=settings.seed)
    inputs, eta = towers.inputs, settings.cca.eta

    def fit(evaluate: Evaluate) -> Matcher:
        covariance = Covariance()
        for images, texts in matching_vectors(inputs, train, context.track):
            covariance.add(images, texts)
        return select_cca(covariance, settings.dim, eta, evaluate, "rsum", context.device)

    return Plan(CCA(CCASettings(1, towers.architectures[1].state_dim, 1, eta[0])), inputs, (), Loop(settings.seed), fit)


def matching_vectors(inputs: Inputs, pairing: Pairing, track: Track) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the image vectors and text vectors of all matching pairs, in batches; parts of an image are averaged."""
    loaded = load_pairing(inputs, pairing, track)
    of_image, of_text = pairing.matches.pairs()
    starts = range(0, len(of_image), COVARIANCE_PAIRS)
    for start in track(starts, "adding up covariances", len(starts)):
        part = slice(start, start + COVARIANCE_PAIRS)
        distinct, back = np.unique(of_image[part], return_inverse=True)
        images = inputs.images.finish(loaded.images.take(distinct))
        if images.ndim == 3:
            images = pool_states(images, real_parts(images), "mean")
        yield images[torch.from_numpy(back)], loaded.texts.take(of_text[part])[0]


@dataclass(frozen=True)
class TagsSettings(RunSettings):
    """Settings of ``tags``, which compares labels of a classifier with the words of a text (a3vse, Sec. 4.2)."""

    backbone: Annotated[str, "folder or hub name of a vision model with a classifier and its labels"] = ""
    expand: Annotated[
        Expansion,
        "words that match a label: its names (none), also synonyms (as in the paper), also broader terms (kinds)",
    ] = "synonyms"
    min_probability: Annotated[float, "smallest probability of a label that counts", (0, 1)] = 0.0


def plan_tags(settings: TagsSettings, collection: Collection, context: RunContext) -> Plan:
    """Return the matcher and its inputs; nothing is trained and no caption is used."""
    del collection
    if not settings.backbone:
        raise UserError("recipe tags needs a classifier: give --set backbone= with its folder or hub name")
    backbone = Backbone.load(settings.backbone).to(context.device).eval()
    classifier = LabelClassifier.load(settings.backbone, backbone)
    wordnet = WordNet.find() if settings.expand != "none" else None
    if settings.expand != "none" and wordnet is None:
        log.warning("WordNet is not installed, so only the names of labels match; %s", INSTALL_HINT)
    matcher = TagMatcher(TagSettings(classifier.weight.shape[1], len(classifier.labels), settings.min_probability))
    matcher.classifier.load_state_dict({"weight": classifier.weight, "bias": classifier.bias})
    images = BackboneInput(backbone, pixel_input(settings.backbone), Path(settings.backbone).name, "vector")
    texts = ConceptInput.from_labels(classifier.labels, settings.expand, wordnet)
    return Plan(matcher.eval(), Inputs(images, texts), (), Loop(settings.seed))
