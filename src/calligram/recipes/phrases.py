"""Recipe ``two-branch-phrases``: two branches for regions and phrases, for phrase localization (two-branch, Sec. 4)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
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
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import Matcher
from calligram.models.two_branch import (
    TwoBranchEmbedding,
    TwoBranchSettings,
    TwoBranchSimilarity,
    TwoBranchSimilaritySettings,
)
from calligram.recipes.baselines import select_cca
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import LearningRate, Optimisation, TrainedSettings
from calligram.recipes.parts.text_vectors import VectorTextSettings, fitted_text
from calligram.recipes.two_branch import (
    BranchDropout,
    BranchLayers,
    ConstraintEpochs,
    ConstraintLR,
    DistanceMargin,
    HiddenSize,
    TripletsKept,
)
from calligram.training.batches.batch import ExtraPairs
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
    """Settings of regions: the boxes and their features."""

    proposals: Annotated[str, "name of the collection's proposals, as given to calligram regions"] = "edgeboxes"
    proposer: Annotated[
        str, "file or folder of a detector that proposes boxes in new images; empty for the method of the proposals"
    ] = ""
    backbone: Annotated[str, "folder or hub name of a vision model; empty for pixels as features"] = ""
    size: Annotated[int, "side of the square input image in pixels", (8, 4096)] = 448
    bins: Annotated[int, "side in pixels to which a box is resized, without a backbone", (1, 64)] = 8
    margin: Annotated[float, "margin around a box as a share of its sides, without a backbone", (0, 10)] = 0.25
    geometry: Annotated[
        float, "weight of the position and area of a box, added to its features; 0 as in the paper", (0, 100)
    ] = 0.0


@dataclass(frozen=True)
class PhrasesRecipe(TrainedSettings):
    """Settings of ``two-branch-phrases``; sizes, weights and sampling of the paper (two-branch, Secs. 4.2-4.3)."""

    network: Annotated[
        Literal["embedding", "similarity", "cca"], "embedding network, similarity network, or a linear fit (cca)"
    ] = "embedding"
    epochs: Annotated[int, "number of epochs", (1, 1000000)] = 8
    sets: Annotated[int | None, "number of sets of pairs in an epoch; none for all", (1, 1000000000)] = None
    set_size: Annotated[int, "number of pairs of a truth region and a phrase in a set", (2, 100000)] = 100
    positives: Annotated[
        Literal["single", "augmented"],
        "positive regions of a phrase: the truth region (single), or also proposals that match it (augmented)",
    ] = "augmented"
    match: Annotated[float, "smallest IoU with the truth of a positive proposal", (0, 1)] = POSITIVE_IOU
    background: Annotated[float, "IoU with the truth below which a proposal is negative", (0, 1)] = NEGATIVE_IOU
    extra: Annotated[
        ExtraPairs, "further triplets: of second positives (neighbours), or as many of random pairs (random), or none"
    ] = "neighbours"
    candidates: Annotated[
        int | None,
        "number of random background regions of an image that a phrase is compared with; none for all",
        (1, 100000),
    ] = None
    weights: Annotated[tuple[float, float], "weights of region anchors and of phrase anchors", (0, 1000)] = (1.0, 4.0)
    margin: DistanceMargin = 0.1
    top_k: TripletsKept = 30
    constraint_epochs: ConstraintEpochs = 0
    constraint_weights: Annotated[
        tuple[float, float], "weights of region neighbourhoods and of phrase neighbourhoods in these epochs", (0, 1000)
    ] = (0.1, 0.1)
    constraint_lr: ConstraintLR = 0.1
    lr: LearningRate = 1e-3
    hidden: HiddenSize = 1024
    dim: Annotated[
        int, "dimension of the joint embedding space; with cca the number of directions, 0 for all", (0, 65536)
    ] = 512
    layers: BranchLayers = 2
    heads: Annotated[int, "number of FC layers after the product, in the similarity network", (1, 3)] = 3
    dropout: BranchDropout = 0.0
    eta: Annotated[
        tuple[float, ...],
        "regularization of cca, as shares of the largest variance; the best value of each modality is selected on dev",
        (0, 1000),
    ] = (1e-4, 1e-3, 1e-2, 1e-1)
    dev_images: Annotated[
        int | None, "number of dev images for the selection of the best epoch; none for all", (1, 100000000)
    ] = None
    chunker_captions: Annotated[
        int, "number of captions that train the noun-phrase chunker; 0 for no chunker", (0, 100000000)
    ] = 12000
    region: RegionSettings = field(default_factory=RegionSettings)
    text: VectorTextSettings = field(default_factory=VectorTextSettings)
    optim: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        if not any(self.weights):
            raise UserError("weights are both zero, so there is nothing to train; give a weight above zero")
        if self.background > self.match:
            raise UserError(f"background={self.background} must not be above match={self.match}")
        if self.constraint_epochs and (self.extra != "neighbours" or self.network != "embedding"):
            raise UserError("constraint_epochs needs network=embedding and extra=neighbours")
        if self.network == "cca" and not self.eta:
            raise UserError("eta needs at least one value, such as 0.001")
        if self.network != "cca" and not self.dim:
            raise UserError("dim must be at least 1")


def plan(settings: PhrasesRecipe, collection: Collection, context: RunContext) -> Plan:
    """Return inputs, matcher and stages; the dev metric is R@1 of localization."""
    towers = _PhraseTowers(settings, collection, context)
    loaded = load_phrases(towers.inputs, collection, "dev", images=settings.dev_images, track=context.track)

    def evaluate(matcher: Matcher) -> Mapping[str, float]:
        found = evaluate_localization(matcher, towers.inputs, loaded)
        return {"r1": found.r1, "r5": found.r5, "r10": found.r10, "oracle": found.oracle, **towers.batch_size}

    loop = settings.loop(select_by="r1")
    if settings.network == "cca":
        stand_in = CCA(CCASettings(1, 1, 1, settings.eta[0]))
        return Plan(stand_in, towers.inputs, (), loop, towers.fit, evaluate)
    return Plan(towers.matcher(), towers.inputs, towers.stages(), loop, None, evaluate)


def region_input(region: RegionSettings, collection: Collection, context: RunContext) -> RegionInput:
    """Return the input of box features, with the settings of the collection's proposals."""
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
        pooling = RegionPooling.load(region.backbone, region.size, context.device)
    top = int(known["settings"]["top"])
    if region.proposer:
        load_proposer(region.proposer, top)  # raises for an unknown name now, not when the run is used
    proposer = region.proposer or (method if method in PROPOSERS else region.proposals)
    return RegionInput(pooling, region.proposals, proposer, top, region.geometry)


class _PhraseTowers:
    """The pairs of truth regions and phrases, the inputs, the batches, and the network."""

    def __init__(self, settings: PhrasesRecipe, collection: Collection, context: RunContext) -> None:
        self.settings, self.context = settings, context
        regions = region_input(settings.region, collection, context)
        images = np.intersect1d(collection.images_in("train"), images_with_proposals(collection, regions.source))
        grounded = grounded_phrases(collection, images)
        proposed = regions.proposal_features(collection, np.unique(grounded.chain_boxes.images), context.track)
        strings = phrase_texts(collection, grounded.phrases).strings
        self.pairs = PhrasePairs.of(grounded, strings, proposed.boxes, settings.match, settings.background)
        log.info(
            "%d pairs of %d truth regions and %d phrases",
            len(self.pairs),
            len(grounded.chain_boxes),
            len(self.pairs.strings),
        )
        text = fitted_text(settings.text, self.pairs.strings, context.track, collection.pictures.cache)
        self.inputs = Inputs(regions, text, _chunker(settings, collection))
        self._towers = {
            "image": ImageArchitecture("features", regions.dim),
            "text": TextArchitecture("vectors", state_dim=text.dim),
        }
        truth = regions.load(box_visuals(collection, grounded.chain_boxes), context.track)
        self._texts = text.load(self.pairs.strings, collection.pictures.cache, context.track)
        self.batches = PhraseBatches(
            self.pairs, self.inputs, truth, proposed.rows, self._texts, self._draw(), seed=settings.seed,
            size=settings.set_size, sets=settings.sets, device=context.device, processes=context.processes,
        )  # fmt: skip

    def _draw(self) -> DrawFunction:
        settings = self.settings
        augment = settings.positives == "augmented"
        if settings.network != "embedding":
            return partial(draw_pairs, augment=augment)
        return partial(draw_triplets, augment=augment, extra=settings.extra, candidates=settings.candidates)

    @cached_property
    def batch_size(self) -> dict[str, float]:
        """The number of triplets or pairs in a mini-batch, as the paper counts them (two-branch, Sec. 4.5)."""
        both = self.settings.weights[0] > 0
        if self.settings.network == "embedding":
            top_k = self.settings.top_k
            return {"triplets": self.batches.mean_size(lambda drawn: drawn.triplets(top_k, both_ways=both))}
        return {"pairs": self.batches.mean_size(lambda drawn: drawn.pairs)}

    def matcher(self) -> Matcher:
        """Return the network."""
        settings = self.settings
        sizes: dict[str, Any] = {
            name: getattr(settings, name) for name in ("hidden", "dim", "layers", "dropout")
        } | self._towers  # fmt: skip
        if settings.network == "similarity":
            return TwoBranchSimilarity(TwoBranchSimilaritySettings(**sizes, heads=settings.heads))
        return TwoBranchEmbedding(TwoBranchSettings(**sizes))

    def stages(self) -> tuple[Stage, ...]:
        """Return one stage, and one with neighbourhood constraints if constraint_epochs is set."""
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
        # The best epoch is selected among these only: the user asked for constraints, whether or not they help.
        return (first, replace(second, lr=settings.lr * settings.constraint_lr, resets_best=True))

    def _stage(self, name: str, epochs: int, objective: Objective) -> Stage:
        optim = self.settings.optim
        return Stage(
            name, epochs, objective, self.batches, optim.build, self.settings.lr, optim.part_lr(), optim.frozen,
            optim.factor(), optim.clip, optim.accumulate,
        )  # fmt: skip

    def fit(self, evaluate: Evaluate) -> Matcher:
        """Fit CCA on all positive pairs; the regularization is selected on dev."""
        covariance = Covariance()
        for regions, texts in self._positives():
            covariance.add(regions, texts)
        return select_cca(covariance, self.settings.dim, self.settings.eta, evaluate, "r1", self.context.device)

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


def _chunker(settings: PhrasesRecipe, collection: Collection) -> Chunker | None:
    if not settings.chunker_captions:
        return None
    return Chunker.train(annotated_captions(collection, "train", settings.chunker_captions), seed=settings.seed)
