"""Recipe ``two-branch-phrases``: regions and phrases by two branches, for finding what a phrase speaks of."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from typing import Annotated, Any, Literal

import numpy as np
from torch import Tensor

from calligram.data.collection import Collection
from calligram.data.grounding import box_visuals, grounded_phrases, phrase_texts
from calligram.data.revision import images_with_proposals, proposal_record
from calligram.errors import UserError, command
from calligram.evaluation.localization import evaluate_localization, load_phrases
from calligram.features.images.pixels import PixelInput
from calligram.features.images.region_input import RegionInput
from calligram.features.inputs import Inputs
from calligram.features.regions.proposers import PROPOSERS, load_proposer
from calligram.features.regions.region_features import RegionCrops, RegionPooling
from calligram.features.texts.chunker import Chunker, annotated_captions
from calligram.features.texts.pca import Covariance
from calligram.models.cca import CCA, CCASettings
from calligram.models.matcher import Matcher
from calligram.models.two_branch import (
    TwoBranchEmbedding,
    TwoBranchSettings,
    TwoBranchSimilarity,
    TwoBranchSimilaritySettings,
)
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import LearningRate, Optimisation, TrainedSettings
from calligram.recipes.parts.towers import VectorTextSettings, fitted_text
from calligram.training.batches.pair_sampler import ExtraPairs
from calligram.training.batches.phrases import (
    NEGATIVE_IOU,
    POSITIVE_IOU,
    DrawFunction,
    DrawnPairsObjective,
    PhraseBatches,
    PhrasePairs,
    draw_pairs,
    draw_triplets,
)
from calligram.training.loop import Evaluate, Stage
from calligram.training.objectives.objective import Objective
from calligram.training.objectives.two_branch import NeighbourhoodObjective

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RegionSettings:
    """The image side: which boxes, and what is known of each."""

    proposals: Annotated[str, "name of the collection's proposals, as calligram regions gave it"] = "edgeboxes"
    finder: Annotated[str, "method for new pictures, where the proposals came from a detector: its file or folder"] = ""
    backbone: Annotated[str, "folder or hub name of a vision model; empty takes the pixels themselves"] = ""
    size: Annotated[int, "side of the square pictures are resized to", (8, 4096)] = 448
    bins: Annotated[int, "pixels a side that are kept of a box, without a backbone", (1, 64)] = 8
    margin: Annotated[float, "share of a box's sides that is seen beyond each, without a backbone", (0, 10)] = 0.25
    geometry: Annotated[float, "weight of a box's place and area beside its features; 0 as in the paper", (0, 100)] = (
        0.0
    )


@dataclass(frozen=True)
class PhrasesRecipe(TrainedSettings):
    """Settings of ``two-branch-phrases``; sizes, weights and sampling are the paper's (two-branch, Secs. 4.2-4.3)."""

    network: Annotated[Literal["embedding", "similarity", "cca"], "distance, a score of pairs, or a linear fit"] = (
        "embedding"
    )
    epochs: Annotated[int, "passes over the training pairs, or over sets of them", (1, 1000000)] = 8
    sets: Annotated[int | None, "sets of pairs that make an epoch, or none for all", (1, 1000000000)] = None
    set_size: Annotated[int, "pairs of a truth region and a phrase in a set", (2, 100000)] = 100
    positives: Annotated[Literal["single", "augmented"], "the truth region alone, or also proposals that match it"] = (
        "augmented"
    )
    match: Annotated[float, "overlap with the truth from which a proposal is positive", (0, 1)] = POSITIVE_IOU
    background: Annotated[float, "overlap with the truth below which a proposal is negative", (0, 1)] = NEGATIVE_IOU
    extra: Annotated[ExtraPairs, "further triplets: of second positives, or as many of other pairs"] = "neighbours"
    candidates: Annotated[
        int | None, "random background regions of an image that a phrase is compared with; none takes all", (1, 100000)
    ] = None
    weights: Annotated[tuple[float, float], "of region anchors and of phrase anchors", (0, 1000)] = (1.0, 4.0)
    margin: Annotated[float, "of the hinge, in distance", (0, 2)] = 0.1
    top_k: Annotated[int | None, "triplets of highest loss kept for every pair, or none for all", (1, 1000000)] = 30
    constraint_epochs: Annotated[int, "further epochs with neighbourhood constraints in the loss", (0, 1000000)] = 0
    constraint_weights: Annotated[
        tuple[float, float], "of region neighbourhoods and of phrase neighbourhoods, in these", (0, 1000)
    ] = (0.1, 0.1)
    constraint_lr: Annotated[float, "factor on the learning rate, in these", (0, 1000)] = 0.1
    lr: LearningRate = 1e-3
    hidden: Annotated[int, "size between the layers of a branch", (1, 65536)] = 1024
    dim: Annotated[int, "size of the joint space; with cca, directions to keep, 0 for all", (0, 65536)] = 512
    layers: Annotated[int, "FC layers of each branch; 1 is linear, without batch norm", (1, 3)] = 2
    heads: Annotated[int, "FC layers after the product, of the similarity network", (1, 3)] = 3
    dropout: Annotated[float, "share of entries set to zero after each ReLU", (0, 0.99)] = 0.0
    eta: Annotated[tuple[float, ...], "cca: shares of the largest variance to add; dev chooses, by side", (0, 1000)] = (
        1e-4, 1e-3, 1e-2, 1e-1,
    )  # fmt: skip
    dev_images: Annotated[int | None, "images of dev that epochs are chosen by, or none for all", (1, 100000000)] = None
    chunks: Annotated[int, "captions that noun phrases are learnt from; 0 for no chunker", (0, 100000000)] = 12000
    region: RegionSettings = field(default_factory=RegionSettings)
    text: VectorTextSettings = field(default_factory=VectorTextSettings)
    optim: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        if not any(self.weights):
            raise UserError("weights are both zero; there is nothing to learn")
        if self.background > self.match:
            raise UserError(f"background={self.background} must not be above match={self.match}")
        if self.constraint_epochs and (self.extra != "neighbours" or self.network != "embedding"):
            raise UserError("constraint_epochs needs network=embedding and extra=neighbours")
        if self.network == "cca" and not self.eta:
            raise UserError("eta needs at least one value, such as 0.001")
        if self.network != "cca" and not self.dim:
            raise UserError("dim must be at least 1")


def plan(settings: PhrasesRecipe, collection: Collection, around: RunContext) -> Plan:
    """Inputs, matcher and stages; dev is measured by R@1 of localization."""
    sides = _PhraseTowers(settings, collection, around)
    loaded = load_phrases(sides.inputs, collection, "dev", images=settings.dev_images, track=around.track)

    def evaluate(matcher: Matcher) -> Mapping[str, float]:
        found = evaluate_localization(matcher, sides.inputs, loaded)
        return {"r1": found.r1, "r5": found.r5, "r10": found.r10, "oracle": found.oracle, **sides.batch_size}

    loop = settings.loop(select_by="r1")
    if settings.network == "cca":
        stand_in = CCA(CCASettings(1, 1, 1, settings.eta[0]))
        return Plan(stand_in, sides.inputs, (), loop, sides.fit, evaluate)
    return Plan(sides.matcher(), sides.inputs, sides.stages(), loop, None, evaluate)


def region_input(region: RegionSettings, collection: Collection, around: RunContext) -> RegionInput:
    """Features of boxes as the collection's proposals were found."""
    known = proposal_record(collection, region.proposals)
    if known is None:
        raise UserError(
            f"collection {collection.folder} has no proposals '{region.proposals}'; find some with "
            + command(
                "calligram",
                "regions",
                collection.folder,
                *["--proposals", "edgeboxes", "--top", "200"],
                *["--backbone", "FOLDER", "--size", "448"],
            )
        )
    method = str(known["settings"]["proposals"]["method"])
    pooling: RegionPooling | RegionCrops = RegionCrops(PixelInput(region.size), region.bins, region.margin)
    if region.backbone:
        pooling = RegionPooling.load(region.backbone, region.size, around.device)
    top = int(known["settings"]["top"])
    if region.finder:
        load_proposer(region.finder, top)  # refused now, not when the run is to find something
    finder = region.finder or (method if method in PROPOSERS else region.proposals)
    return RegionInput(pooling, region.proposals, finder, top, region.geometry)


class _PhraseTowers:
    """Pairs of a truth region and a phrase with everything that is drawn from them."""

    def __init__(self, settings: PhrasesRecipe, collection: Collection, around: RunContext) -> None:
        self.settings, self.around = settings, around
        regions = region_input(settings.region, collection, around)
        images = np.intersect1d(collection.images_in("train"), images_with_proposals(collection, regions.source))
        grounded = grounded_phrases(collection, images)
        proposed = regions.proposal_features(collection, np.unique(grounded.chain_boxes.images), around.track)
        strings = phrase_texts(collection, grounded.phrases).strings
        self.pairs = PhrasePairs.of(grounded, strings, proposed.boxes, settings.match, settings.background)
        log.info(
            "%d pairs of %d regions and %d phrases", len(self.pairs), len(grounded.chain_boxes), len(self.pairs.strings)
        )
        text = fitted_text(settings.text, self.pairs.strings, around.track, collection.pictures.cache)
        self.inputs = Inputs(regions, text, _chunker(settings, collection))
        self._dims = {"image_dim": regions.dim, "text_dim": text.dim}
        truth = regions.load(box_visuals(collection, grounded.chain_boxes), around.track)
        self._texts = text.load(self.pairs.strings, collection.pictures.cache, around.track)
        self.batches = PhraseBatches(
            self.pairs, self.inputs, truth, proposed.rows, self._texts, self._draw(), seed=settings.seed,
            size=settings.set_size, sets=settings.sets, device=around.device, processes=around.processes,
        )  # fmt: skip

    def _draw(self) -> DrawFunction:
        settings = self.settings
        augment = settings.positives == "augmented"
        if settings.network != "embedding":
            return partial(draw_pairs, augment=augment)
        return partial(draw_triplets, augment=augment, extra=settings.extra, candidates=settings.candidates)

    @cached_property
    def batch_size(self) -> dict[str, float]:
        """Triplets or pairs in a mini-batch, as the paper counts them (two-branch, Sec. 4.5)."""
        both = self.settings.weights[0] > 0
        if self.settings.network == "embedding":
            top_k = self.settings.top_k
            return {"triplets": self.batches.mean_size(lambda drawn: drawn.triplets(top_k, both_ways=both))}
        return {"pairs": self.batches.mean_size(lambda drawn: drawn.pairs)}

    def matcher(self) -> Matcher:
        """The network."""
        settings = self.settings
        sizes: dict[str, Any] = {
            name: getattr(settings, name) for name in ("hidden", "dim", "layers", "dropout")
        } | self._dims  # fmt: skip
        if settings.network == "similarity":
            return TwoBranchSimilarity(TwoBranchSimilaritySettings(**sizes, heads=settings.heads))
        return TwoBranchEmbedding(TwoBranchSettings(**sizes))

    def stages(self) -> tuple[Stage, ...]:
        """One stage, and one with neighbourhood constraints where they are asked for."""
        settings = self.settings
        if settings.network == "similarity":
            return (self._stage("logistic", settings.epochs, DrawnPairsObjective()),)
        ranking = NeighbourhoodObjective((*settings.weights, 0.0, 0.0), settings.margin, settings.top_k)
        first = self._stage("ranking", settings.epochs, ranking)
        if not settings.constraint_epochs:
            return (first,)
        weights = (*settings.weights, *settings.constraint_weights)
        constrained = NeighbourhoodObjective(weights, settings.margin, settings.top_k)
        second = self._stage("constraints", settings.constraint_epochs, constrained)
        # Chosen anew: the constraints are asked for, whether or not they help.
        return (first, replace(second, lr=settings.lr * settings.constraint_lr, resets_best=True))

    def _stage(self, name: str, epochs: int, objective: Objective) -> Stage:
        optim = self.settings.optim
        return Stage(
            name, epochs, objective, self.batches, optim.build, self.settings.lr, optim.part_lr(), optim.frozen,
            optim.factor(), optim.clip, optim.accumulate,
        )  # fmt: skip

    def fit(self, evaluate: Evaluate) -> Matcher:
        """CCA of all positive pairs; dev chooses how much is added to the variances."""
        covariance = Covariance()
        for regions, texts in self._positives():
            covariance.add(regions, texts)
        # Of each side its own: Fisher vectors have far more weak directions than image features.
        candidates = [
            CCA.from_covariance(covariance, self.settings.dim, *etas) for etas in product(self.settings.eta, repeat=2)
        ]
        if len(candidates) == 1:
            return candidates[0]
        found = [evaluate(matcher.to(self.around.device))["r1"] for matcher in candidates]
        for matcher, r1 in zip(candidates, found, strict=True):
            log.info("eta %g and %g: dev R@1 %.1f", matcher.settings.eta, matcher.settings.text_eta, r1)
        return candidates[int(np.argmax(found))]

    def _positives(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Regions and phrases that match, set by set, each pair of the split once."""
        steps = range(0, len(self.pairs), 10 * self.settings.set_size)
        rng = np.random.default_rng(self.settings.seed)
        for start in self.around.track(steps, "adding up covariances", len(steps)):
            chosen = np.arange(start, min(start + 10 * self.settings.set_size, len(self.pairs)))
            drawn = draw_pairs(self.pairs, chosen, rng, augment=self.settings.positives == "augmented")
            text, region = np.nonzero(drawn.text_target > 0)
            rows = self.batches.take(drawn.regions[region])
            yield self.inputs.images.finish(rows), self._texts.take(drawn.texts[text])[0]


def _chunker(settings: PhrasesRecipe, collection: Collection) -> Chunker | None:
    if not settings.chunks:
        return None
    return Chunker.train(annotated_captions(collection, "train", settings.chunks), seed=settings.seed)
