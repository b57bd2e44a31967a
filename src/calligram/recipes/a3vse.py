"""Recipe ``a3vse``: any matcher, trained on few captions and on pseudo pairs of images without captions (a3vse)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import torch

from calligram.data.collection import Collection
from calligram.data.matches import Matches
from calligram.data.pairing import Pairing, Texts
from calligram.errors import UserError
from calligram.features.inputs import Inputs
from calligram.models.catalog import MATCHERS
from calligram.models.layers.networks import HeadKind
from calligram.models.matcher import Matcher
from calligram.recipes.parts.matchers import FragmentModels, MatcherName, MatcherSettings, build_matcher
from calligram.recipes.parts.pseudo_pairs import PseudoSettings, make_pseudo_pairs
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import (
    CandidateSettings,
    Dim,
    EMADecay,
    EpochsWithWarmup,
    LearningRate,
    LossKind,
    Margin,
    ModelFolder,
    Optimisation,
    PairedSettings,
    PairLoss,
    Temperature,
    TopK,
    WarmupEpochs,
    WeightedObjectives,
    pair_batches,
    plan_pair_stages,
)
from calligram.recipes.parts.towers import ImageSettings, TextSettings
from calligram.training.batches.batch import PairSampler, derived_seed
from calligram.training.batches.pseudo_pairs import PseudoPairBatches, RepeatedPasses
from calligram.training.loop import BatchSource, Stage
from calligram.training.objectives.pseudo_pairs import Adversary, AdversaryTerms, PseudoPairObjective

log = logging.getLogger(__name__)

PRESETS: Mapping[str, tuple[str, ...]] = {
    "ours": (),
    # The paper gives the rate 0.00005 both before and after epoch 16 of 24; we take ten times as much before.
    "paper": (
        "loss=ranking", "top_k=1", "margin=0.2", "pseudo_margin=0.3", "warmup_epochs=0", "beta=0.8", "epochs=24",
        "batch=128", "texts=1", "epoch_of=pairs", "lr=0.0005", "ema_decay=0", "dim=512", "text.hidden=512",
        "text.word_dim=300", "text.min_count=4", "text.max_words=82", "text.dropout=0", "text.word_dropout=0",
        "optim.optimizer=adam", "optim.weight_decay=0.000001", "optim.schedule=step", "optim.step_at=0.667",
        "optim.warmup=0", "optim.clip=2", "pseudo.repeats=true", "pseudo.max_regions=36",
        "pseudo.attributes=all", "pseudo.min_label_score=0.3", "pseudo.naming=own",
    ),
}  # fmt: skip
"""settings of the paper, where it gives them (a3vse, Sec. 4.3)"""


@dataclass(frozen=True)
class AdversarySettings:
    """Six discriminators of the four domains, for three kinds of alignment (a3vse, Eqs. 4-8)."""

    weight: Annotated[float, "factor on the weights of all discriminators; 0 for none", (0, 1000)] = 1.0
    intra: Annotated[
        tuple[float, float],
        "weights of two discriminators: annotated against other images, and captions against pseudo-sentences",
        (0, 1000),
    ] = (0.2, 0.1)
    cross: Annotated[
        tuple[float, float],
        "weights of two discriminators of images against texts: of annotated pairs, and of pseudo pairs",
        (0, 1000),
    ] = (0.5, 0.5)
    trans: Annotated[
        tuple[float, float],
        "weights of two discriminators: annotated images against pseudo-sentences, and other images against captions",
        (0, 1000),
    ] = (0.3, 0.3)
    steepness: Annotated[float, "steepness of the schedule by which gradient reversal increases, eta", (0, 1000)] = 10.0
    hidden: Annotated[int, "dimension of the hidden layer of a discriminator; 0 for a linear one", (0, 65536)] = 512

    @property
    def terms(self) -> AdversaryTerms | None:
        """The adversarial terms; None where all weights are zero."""
        intra, cross, trans = (
            (self.weight * one, self.weight * two) for one, two in (self.intra, self.cross, self.trans)
        )
        terms = AdversaryTerms(intra, cross, trans, self.steepness, self.hidden)
        return terms if any(terms.weights().values()) else None


@dataclass(frozen=True)
class A3VSERecipe(FragmentModels, CandidateSettings, PairedSettings):
    """Settings of ``a3vse``: beta, margins and weights of the paper; loss, sizes and rates of ``preset``.

    ``sparse.images`` and ``sparse.captions`` set the number of captions. Pseudo pairs are made of images without
    captions. Where all images have captions, only the loss of annotated pairs is left.
    """

    presets: ClassVar[Mapping[str, tuple[str, ...]]] = PRESETS

    preset: Annotated[Literal["ours", "paper"], "base settings: ours, or those of the paper"] = "ours"
    matcher: Annotated[MatcherName, "matcher that is trained"] = "a3vse"
    pseudo: PseudoSettings = field(default_factory=PseudoSettings)
    pseudo_batch: Annotated[
        int, "number of images in a batch of pseudo pairs; 0 for as many as in batch", (0, 1000000)
    ] = 0
    beta: Annotated[float, "weight of annotated pairs; pseudo pairs have 1 - beta", (0, 1)] = 0.8
    adversary: AdversarySettings = field(default_factory=AdversarySettings)
    epochs: EpochsWithWarmup = 20
    steps: Annotated[int, "number of steps of an epoch; 0 for one pass over the annotated pairs", (0, 1000000)] = 0
    warmup_epochs: WarmupEpochs = 1
    loss: LossKind = "infonce"
    margin: Margin = 0.2
    pseudo_margin: Annotated[float, "margin of the hinge over pseudo pairs", (0, 100)] = 0.3
    top_k: TopK = 1
    temperature: Temperature = 0.07
    lr: LearningRate = 5e-4
    dim: Dim = 512
    head: Annotated[HeadKind, "layers from image or text CNN features to the joint space, for vse and dual-path"] = (
        "linear"
    )
    model: ModelFolder = ""
    ema_decay: EMADecay = 0.99
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(
        default_factory=lambda: TextSettings(word_dim=300, hidden=512, min_count=1, dropout=0.2, word_dropout=None)
    )
    optim: Optimisation = field(default_factory=Optimisation)

    @property
    def teachers(self) -> dict[str, str]:
        """The run that retrieves sentences for images without captions."""
        return {"pseudo.run": self.pseudo.run} if self.pseudo.run else {}

    def __post_init__(self) -> None:
        if self.pseudo_batch == 1:
            raise UserError("pseudo_batch must be at least 2 images, or 0 for as many as batch, got 1")
        if self.pseudo.images == "none" and (self.pseudo.run or self.pseudo.neighbours):
            raise UserError("pseudo.images=none makes no pseudo pairs; leave out pseudo.run and pseudo.neighbours")


def plan(settings: A3VSERecipe, collection: Collection, context: RunContext) -> Plan:
    """Return inputs, matcher and stages, with pseudo pairs where there are any."""
    _model(settings).check()  # first, since making pseudo-sentences takes long
    train = collection.sentences("train").join_equal_texts()
    pseudo = _pseudo(settings, collection, context)
    matcher, inputs, extra = build_matcher(_model(settings), _with_all_texts(train, pseudo), context)
    settings.check_candidates(matcher)
    steps = settings.steps
    own = pair_batches(settings, train, inputs, context)
    if pseudo is None:
        feed: BatchSource = RepeatedPasses(own, steps) if steps else own
        return Plan(
            matcher, inputs, _stages(settings, feed, extra), settings.loop(), dev_depth=settings.dev_candidates(matcher)
        )
    size = settings.pseudo_batch or settings.batch
    sampler = PairSampler(pseudo.matches, size, derived_seed(settings.seed, "pseudo"))
    feed = PseudoPairBatches(own, pair_batches(settings, pseudo, inputs, context, sampler=sampler), steps)
    stages = _with_pseudo_pairs(settings, _stages(settings, feed, extra), _adversary(settings, matcher, inputs))
    return Plan(
        matcher, inputs, stages, settings.loop(), dev_depth=settings.dev_candidates(matcher), pseudo=pseudo.fingerprint
    )


def _pseudo(settings: A3VSERecipe, collection: Collection, context: RunContext) -> Pairing | None:
    """Return pseudo pairs; None where the settings want none, or where there are fewer than two images or texts."""
    if settings.pseudo.images == "none":
        return None
    if settings.pseudo.images == "unannotated" and not len(collection.unannotated("train")):
        log.info("every training image has captions: training without pseudo pairs and adversarial terms")
        return None
    _check_adversary(settings)
    found = make_pseudo_pairs(collection, settings.pseudo, context)
    images, texts = (int((count > 0).sum()) for count in found.matches.counts())
    if min(images, texts) < 2:
        log.info(
            "%d images with %d different pseudo-sentences are too few: training without pseudo pairs", images, texts
        )
        return None
    return found


def _check_adversary(settings: A3VSERecipe) -> None:
    """Refuse discriminators of vectors that the score does not use."""
    kind = MATCHERS.get(settings.matcher)  # None for dual-path, which is vse with other settings
    if settings.adversary.terms is not None and kind is not None and not kind.matcher.scores_vectors:
        raise UserError(
            f"matcher={settings.matcher} does not score by vectors, and discriminators are trained on vectors; "
            "take adversary.weight=0, or a matcher of vectors such as a3vse, vse or mmca"
        )


def _with_all_texts(train: Pairing, pseudo: Pairing | None) -> Pairing:
    """Return the annotated pairs plus pseudo-sentences as unmatched texts, so that the vocabulary has their words."""
    if pseudo is None:
        return train
    texts = Texts((*train.texts.ids, *pseudo.texts.ids), (*train.texts.strings, *pseudo.texts.strings))
    return Pairing(train.visuals, texts, Matches(*train.matches.pairs(), (len(train.visuals), len(texts))))


def _model(settings: A3VSERecipe) -> MatcherSettings:
    return MatcherSettings(
        settings.matcher, settings.image, settings.text, settings.dim, settings.head, settings.model, settings
    )


def _stages(
    settings: A3VSERecipe, feed: BatchSource, extra: WeightedObjectives = (), margin: float | None = None
) -> tuple[Stage, ...]:
    """Return the stages of the triplet loss after a warm-up with all negatives (a3vse, Eq. 2), or of InfoNCE."""
    optim = settings.optim
    loss = PairLoss(
        settings.loss,
        settings.margin if margin is None else margin,
        settings.top_k,
        settings.warmup_epochs,
        settings.temperature,
        candidates=settings,
    )
    return plan_pair_stages(loss, settings.epochs, feed, optim, settings.lr, optim.frozen, extra)


def _with_pseudo_pairs(
    settings: A3VSERecipe, stages: tuple[Stage, ...], adversary: Adversary | None
) -> tuple[Stage, ...]:
    """Add pseudo pairs and the discriminators, shared by all stages (a3vse, Eqs. 3 and 9)."""
    total, begun = sum(stage.epochs for stage in stages), 0
    of_pseudo = _stages(settings, stages[0].batches, margin=settings.pseudo_margin)
    found = []
    for stage, other in zip(stages, of_pseudo, strict=True):
        span = begun / total, (begun + stage.epochs) / total
        objective = PseudoPairObjective(stage.objective, other.objective, settings.beta, adversary, span)
        found.append(replace(stage, objective=objective))
        begun += stage.epochs
    return tuple(found)


def _adversary(settings: A3VSERecipe, matcher: Matcher, inputs: Inputs) -> Adversary | None:
    terms = settings.adversary.terms
    return None if terms is None else Adversary(_vector_size(matcher, inputs), terms)


@torch.no_grad()
def _vector_size(matcher: Matcher, inputs: Inputs) -> int:
    """Return the dimension of a matcher's vectors."""
    words, mask = (tensor.cpu() for tensor in inputs.texts.texts(["a"]))
    return int(matcher.eval().encode_texts(words, mask).vectors.shape[1])
