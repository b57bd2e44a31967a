"""Recipe ``phrases``: two branches for regions and phrases, for phrase localization (two-branch, Sec. 4)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from calligram.data.collection import Collection
from calligram.data.grounding import box_visuals, grounded_phrases, phrase_texts
from calligram.data.revision import images_with_proposals
from calligram.errors import UserError
from calligram.evaluation.localization import evaluate_localization, load_phrases
from calligram.features.images.region_input import RegionSettings, region_input
from calligram.features.inputs import Inputs
from calligram.features.texts.chunker import Chunker, annotated_captions
from calligram.features.texts.fitted_vectors import fitted_text
from calligram.features.texts.pca import Covariance
from calligram.models.catalog import MATCHERS
from calligram.models.cca import CCA, CCASettings, select_cca
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import Matcher
from calligram.models.two_branch import TwoBranchSettings, TwoBranchSimilaritySettings
from calligram.recipes.baselines import CCAFit
from calligram.recipes.parts.config import SettingsTable, components, settings_of_stage
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.run_settings import RARE, LearningRate, Optimisation, StageSettings, TrainedSettings
from calligram.recipes.parts.terms import TERMS, Neighbourhood
from calligram.recipes.parts.tower_settings import TextSettings
from calligram.training.batches.batch import ExtraPairs
from calligram.training.batches.phrase_pairs import NEGATIVE_IOU, POSITIVE_IOU, PhrasePairs
from calligram.training.batches.phrases import (
    DrawFunction,
    DrawnPairsObjective,
    PhraseBatches,
    draw_pairs,
    draw_triplets,
)
from calligram.training.loop import Evaluate, Stage
from calligram.training.objectives.objective import JointObjective, Objective
from calligram.training.objectives.two_branch import NeighbourhoodObjective

log = logging.getLogger(__name__)


PHRASE_MATCHERS = SettingsTable(
    {"two-branch": TwoBranchSettings, "two-branch-similarity": TwoBranchSimilaritySettings, "cca": CCAFit}
)
"""settings classes of the matchers of regions and phrases, by name"""


@dataclass(frozen=True)
class PhrasesSettings(TrainedSettings):
    """Settings of recipe ``phrases``; sizes, weights and sampling of the paper (two-branch, Secs. 4.2-4.3)."""

    in_stages: ClassVar[tuple[str, ...]] = ("epochs", "lr", "optim.*")

    matcher: Annotated[tuple[Any, ...], "matcher: two-branch, two-branch-similarity, or a linear fit (cca)"] = (
        components(PHRASE_MATCHERS, "matcher of regions and phrases", (TwoBranchSettings(hidden=1024, dropout=0.0),))
    )
    dim: Annotated[
        int, "dimension of the joint embedding space; with cca the number of directions, 0 for all", (0, 65536)
    ] = 512
    sets: Annotated[int | None, "number of sets of pairs in an epoch; none for all", (1, 1000000000), RARE] = None
    set_size: Annotated[int, "number of pairs of a truth region and a phrase in a set", (2, 100000)] = 100
    positives: Annotated[
        Literal["single", "augmented"],
        "positive regions of a phrase: the truth region (single), or also proposals that match it (augmented)",
    ] = "augmented"
    match: Annotated[float, "smallest IoU with the truth of a positive proposal", (0, 1), RARE] = POSITIVE_IOU
    background: Annotated[float, "IoU with the truth below which a proposal is negative", (0, 1), RARE] = NEGATIVE_IOU
    extra_pairs: Annotated[
        ExtraPairs, "further triplets: of second positives (neighbours), or as many of random pairs (random), or none"
    ] = "neighbours"
    region_negatives: Annotated[
        int | None,
        "number of random background regions of an image that a phrase is compared with; none for all",
        (1, 100000),
    ] = None
    terms: Annotated[tuple[Any, ...], "terms of the loss: neighbourhood, or logistic for two-branch-similarity"] = (
        components(TERMS, "term", (Neighbourhood(weights=(1.0, 4.0, 0.0, 0.0), top_k=30),))
    )
    epochs: Annotated[int, "number of epochs", (1, 1000000)] = 8
    lr: LearningRate = 1e-3
    chunker_captions: Annotated[
        int, "number of captions that train the noun-phrase chunker; 0 for no chunker", (0, 100000000), RARE
    ] = 12000
    region: RegionSettings = field(default_factory=RegionSettings)
    text: TextSettings = field(default_factory=lambda: TextSettings(network="vectors"))
    optim: Optimisation = field(default_factory=Optimisation)
    stages: tuple[StageSettings, ...] = ()

    def __post_init__(self) -> None:
        if self.background > self.match:
            raise UserError(f"background={self.background} must not be above match={self.match}")
        if len(self.matcher) != 1 or len(self.terms) != 1:
            raise UserError("recipe phrases trains one matcher with one term; give one name in matcher= and in terms=")
        wanted = {"two-branch": "neighbourhood", "two-branch-similarity": "logistic"}.get(self.network)
        if wanted and self.terms[0].name != wanted:
            raise UserError(f"matcher={self.network} of regions and phrases is trained by terms={wanted}")
        if self.network != "cca" and not self.dim:
            raise UserError("dim must be at least 1")
        if self.text.encoder or self.text.network != "vectors":
            raise UserError("recipe phrases takes text vectors; leave text.network=vectors and give no text.encoder")

    @property
    def network(self) -> str:
        """Name of the matcher."""
        return PHRASE_MATCHERS.name_of(self.matcher[0])


def plan(settings: PhrasesSettings, collection: Collection, context: RunContext) -> Plan:
    """Return inputs, matcher and stages; the dev metric is R@1 of localization."""
    towers = _PhraseTowers(settings, collection, context)
    loaded = load_phrases(towers.inputs, collection, "dev", track=context.track)

    def evaluate(matcher: Matcher) -> Mapping[str, float]:
        found = evaluate_localization(matcher, towers.inputs, loaded)
        return {"r1": found.r1, "r5": found.r5, "r10": found.r10, "oracle": found.oracle, **towers.batch_size}

    loop = settings.loop(select_by="r1")
    if settings.network == "cca":
        stand_in = CCA(CCASettings(1, 1, 1, settings.matcher[0].eta[0]))
        return Plan(stand_in, towers.inputs, (), loop, towers.fit, evaluate)
    return Plan(towers.matcher(), towers.inputs, towers.stages(), loop, None, evaluate)


class _PhraseTowers:
    """The pairs of truth regions and phrases, the inputs, the batches, and the network."""

    def __init__(self, settings: PhrasesSettings, collection: Collection, context: RunContext) -> None:
        self.settings, self.context = settings, context
        regions = region_input(settings.region, collection, context.device)
        dense = regions.training_proposals(collection, settings.region.training)
        images = np.intersect1d(collection.images_in("train"), images_with_proposals(collection, dense.source))
        grounded = grounded_phrases(collection, images)
        proposed = dense.proposal_features(collection, np.unique(grounded.chain_boxes.images), context.track)
        strings = phrase_texts(collection, grounded.phrases).strings
        self.pairs = PhrasePairs.of(grounded, strings, proposed.boxes, settings.match, settings.background)
        log.info(
            "%d pairs of %d truth regions and %d phrases",
            len(self.pairs),
            len(grounded.chain_boxes),
            len(self.pairs.strings),
        )
        cache, own = collection.pictures.cache, settings.text
        strings, seed = self.pairs.strings, settings.seed
        text = fitted_text(own.fitted, own.vectors, strings, context.track, cache, seed, context.device)
        self.inputs = Inputs(regions, text, _chunker(settings, collection))
        self._architectures = (
            ImageArchitecture("features", regions.dim),
            TextArchitecture("vectors", state_dim=text.dim),
        )
        truth = regions.load(box_visuals(collection, grounded.chain_boxes), context.track)
        self._texts = text.load(self.pairs.strings, cache, context.track)
        self.batches = PhraseBatches(
            self.pairs, self.inputs, truth, proposed.rows, self._texts, self._draw(), seed=settings.seed,
            size=settings.set_size, sets=settings.sets, device=context.device, processes=context.processes,
        )  # fmt: skip

    def _draw(self) -> DrawFunction:
        settings = self.settings
        augment = settings.positives == "augmented"
        if settings.network != "two-branch":
            return partial(draw_pairs, augment=augment)
        return partial(draw_triplets, augment=augment, extra=settings.extra_pairs, candidates=settings.region_negatives)

    @cached_property
    def batch_size(self) -> dict[str, float]:
        """The number of triplets or pairs in a mini-batch, as the paper counts them (two-branch, Sec. 4.5)."""
        term = self.settings.terms[0]
        if self.settings.network == "two-branch":
            top_k, both = term.top_k, term.weights[0] > 0
            return {"triplets": self.batches.mean_size(lambda drawn: drawn.triplets(top_k, both_ways=both))}
        return {"pairs": self.batches.mean_size(lambda drawn: drawn.pairs)}

    def matcher(self) -> Matcher:
        """Return the network."""
        settings = self.settings.matcher[0].with_towers(*self._architectures, self.settings.dim)
        return MATCHERS[self.settings.network].matcher(settings)

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages, such as one of ranking and one with neighbourhood constraints."""
        found = []
        for each in self.settings.stages or (StageSettings(),):
            own = settings_of_stage(self.settings, each)
            term = own.terms[0]
            if not term.weight:
                raise UserError(f"{term.name}.weight is 0, so nothing is trained; give a weight above 0")
            if term.name == "logistic":
                objective: Objective = DrawnPairsObjective()
            else:
                if any(term.weights[2:]) and own.extra_pairs != "neighbours":
                    raise UserError("neighbourhood constraints need extra_pairs=neighbours")
                objective = NeighbourhoodObjective(term.weights, term.margin, term.top_k)
            weighted = objective if term.weight == 1 else JointObjective((term.weight, objective))
            constrained = term.name != "logistic" and any(term.weights[2:])
            batches = self.batches if constrained else self.batches.without_neighbourhoods()
            made = own.optim.stage(each.name or term.name, own.epochs, weighted, batches, own.lr)
            found.append(replace(made, resets_best=each.resets_best))
        return tuple(found)

    def fit(self, evaluate: Evaluate) -> Matcher:
        """Fit CCA on all positive pairs; the regularization is selected on dev."""
        covariance = Covariance()
        for regions, texts in self._positives():
            covariance.add(regions, texts)
        return select_cca(
            covariance, self.settings.dim, self.settings.matcher[0].eta, evaluate, "r1", self.context.device
        )

    def _positives(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the features of matching regions and phrases in batches; each pair of the split occurs once."""
        steps = range(0, len(self.pairs), 10 * self.settings.set_size)
        rng = np.random.default_rng(self.settings.seed)
        for start in self.context.track(steps, "adding up covariances", len(steps)):
            chosen = np.arange(start, min(start + 10 * self.settings.set_size, len(self.pairs)))
            drawn = draw_pairs(self.pairs, chosen, rng, augment=self.settings.positives == "augmented")
            text, region = np.nonzero(drawn.text_target > 0)
            rows = self.batches.take(drawn.regions[region])
            yield self.inputs.images.finish(rows), self._texts.take(drawn.texts[text])[0]


def _chunker(settings: PhrasesSettings, collection: Collection) -> Chunker | None:
    if not settings.chunker_captions:
        return None
    return Chunker.train(annotated_captions(collection, "train", settings.chunker_captions), seed=settings.seed)
