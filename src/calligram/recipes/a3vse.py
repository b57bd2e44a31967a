"""Recipe ``a3vse``: any matcher from few captions and from pseudo pairs of images that nobody captioned (a3vse)."""

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
from calligram.models.heads import HeadKind
from calligram.models.matcher import Matcher
from calligram.recipes.a3vse_presets import PRESETS
from calligram.recipes.embedding import ImageSettings, TextSettings
from calligram.recipes.fragment_models import FragmentModels
from calligram.recipes.matchers import Extra, MatcherName, Model, built
from calligram.recipes.optimisation import Optimisation
from calligram.recipes.plan import Plan, Surroundings
from calligram.recipes.pseudo_pairs import PseudoSettings, pseudo_pairs
from calligram.recipes.run_settings import (
    Average,
    Dim,
    LearningRate,
    LossKind,
    Margin,
    PairedSettings,
    StagedSettings,
    TopK,
    Warmup,
)
from calligram.recipes.stages import PairLoss, pair_batches, pair_stages
from calligram.training.loop import Feed, Stage
from calligram.training.samplers import PairSampler, derived_seed
from calligram.training.weak_batches import Again, WeakBatches
from calligram.training.weak_objectives import Adversary, AdversaryTerms, WeakObjective

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AdversarySettings:
    """Six discriminators of the four domains, in three kinds of alignment (a3vse, Eqs. 4-8)."""

    weight: Annotated[float, "factor on all of them; 0 for none", (0, 1000)] = 1.0
    intra: Annotated[tuple[float, float], "weights of images and of texts, annotated against not", (0, 1000)] = (
        0.2, 0.1,
    )  # fmt: skip
    cross: Annotated[tuple[float, float], "of images against texts: annotated pairs, pseudo pairs", (0, 1000)] = (
        0.5, 0.5,
    )  # fmt: skip
    trans: Annotated[
        tuple[float, float], "of annotated images against pseudo-sentences, and the reverse", (0, 1000)
    ] = (0.3, 0.3)
    steepness: Annotated[float, "eta, of how the reversal of gradients sets in", (0, 1000)] = 10.0
    hidden: Annotated[int, "size of a discriminator's hidden layer; 0 for a linear one", (0, 65536)] = 512

    @property
    def terms(self) -> AdversaryTerms | None:
        """What is minimised, None where all weights are zero."""
        intra, cross, trans = (
            (self.weight * one, self.weight * two) for one, two in (self.intra, self.cross, self.trans)
        )
        terms = AdversaryTerms(intra, cross, trans, self.steepness, self.hidden)
        return terms if any(terms.weights().values()) else None


@dataclass(frozen=True)
class A3VSERecipe(FragmentModels, StagedSettings, PairedSettings):
    """Settings of ``a3vse``: beta, margins and weights are the paper's; loss, sizes and rates those of ``preset``.

    ``matcher`` is the paper's own or any other; ``sparse.images`` and ``sparse.captions`` say how many captions there
    are, and the pictures without any are what pseudo pairs are made of. Without any there is nothing but the loss of
    the annotated pairs.
    """

    presets: ClassVar[Mapping[str, tuple[str, ...]]] = PRESETS

    preset: Annotated[Literal["ours", "paper"], "settings that others are laid over: ours or the paper's"] = "ours"
    matcher: Annotated[MatcherName, "what is trained"] = "a3vse"
    pseudo: PseudoSettings = field(default_factory=PseudoSettings)
    pseudo_batch: Annotated[int, "images in a batch of pseudo pairs; 0 for as many as annotated ones", (0, 1000000)] = 0
    beta: Annotated[float, "weight of annotated pairs, of 1 that both have", (0, 1)] = 0.8
    adversary: AdversarySettings = field(default_factory=AdversarySettings)
    epochs: Annotated[int, "epochs, warm-up included", (1, 1000000)] = 20
    steps: Annotated[
        int, "steps in an epoch, whatever the number of captions; 0 for one pass over the annotated pairs", (0, 1000000)
    ] = 0
    warmup_epochs: Warmup = 1
    loss: LossKind = "infonce"
    margin: Margin = 0.2
    pseudo_margin: Annotated[float, "of the hinge over pseudo pairs", (0, 100)] = 0.3
    top_k: TopK = 1
    temperature: Annotated[float, "of InfoNCE at the start; it is learnt", (0.001, 100)] = 0.07
    lr: LearningRate = 5e-4
    dim: Dim = 512
    head: Annotated[HeadKind, "maps image features into it, and a text CNN's; for vse and dual-path"] = "linear"
    model: Annotated[str, "folder or hub name of a dual encoder, for matcher=pretrained"] = ""
    average: Average = 0.99
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(
        default_factory=lambda: TextSettings(word_dim=300, hidden=512, min_count=1, dropout=0.2, blank=None)
    )
    optim: Optimisation = field(default_factory=Optimisation)

    @property
    def teachers(self) -> dict[str, str]:
        """The run that finds sentences for images without captions."""
        return {"pseudo.run": self.pseudo.run} if self.pseudo.run else {}

    def __post_init__(self) -> None:
        if self.pseudo_batch == 1:
            raise UserError("pseudo_batch must be at least 2 images, or 0 for as many as batch, got 1")
        if self.pseudo.of == "none" and (self.pseudo.run or self.pseudo.neighbours):
            raise UserError("pseudo.of=none makes no pseudo pairs; leave out pseudo.run and pseudo.neighbours")


def plan(settings: A3VSERecipe, collection: Collection, around: Surroundings) -> Plan:
    """Inputs, matcher and stages, with pseudo pairs where there are any."""
    _model(settings).check()  # before pseudo-sentences are made, which takes long
    train = collection.sentences("train").join_equal_texts()
    pseudo = _pseudo(settings, collection, around)
    matcher, inputs, extra = built(_model(settings), _known(train, pseudo), around)
    settings.check_staged(matcher)
    steps = settings.steps
    own = pair_batches(settings, train, inputs, around)
    if pseudo is None:
        feed: Feed = Again(own, steps) if steps else own
        return Plan(
            matcher, inputs, _stages(settings, feed, extra), settings.loop(), dev_depth=settings.measured(matcher)
        )
    size = settings.pseudo_batch or settings.batch
    sampler = PairSampler(pseudo.matches, size, derived_seed(settings.seed, "pseudo"))
    feed = WeakBatches(own, pair_batches(settings, pseudo, inputs, around, sampler=sampler), steps)
    stages = _weak(settings, _stages(settings, feed, extra), _adversary(settings, matcher, inputs))
    return Plan(
        matcher, inputs, stages, settings.loop(), dev_depth=settings.measured(matcher), pseudo=pseudo.fingerprint
    )


def _pseudo(settings: A3VSERecipe, collection: Collection, around: Surroundings) -> Pairing | None:
    """Pseudo pairs; None where none are wanted or there are too few to tell apart, which is said."""
    if settings.pseudo.of == "none":
        return None
    if settings.pseudo.of == "unannotated" and not len(collection.unannotated("train")):
        log.info("every training image has captions: no pseudo pairs and no adversarial terms")
        return None
    _check_adversary(settings)
    found = pseudo_pairs(collection, settings.pseudo, around)
    images, texts = (int((count > 0).sum()) for count in found.matches.counts())
    if min(images, texts) < 2:
        log.info("%d images with %d different pseudo-sentences are too few: no pseudo pairs", images, texts)
        return None
    return found


def _check_adversary(settings: A3VSERecipe) -> None:
    """Refuse discriminators of vectors no score uses; called before pseudo-sentences are made, which takes long."""
    kind = MATCHERS.get(settings.matcher)  # dual-path is vse by its settings
    if settings.adversary.terms is not None and kind is not None and not kind.matcher.scores_vectors:
        raise UserError(
            f"matcher={settings.matcher} scores without its vectors, which discriminators would see; "
            "take adversary.weight=0, or a matcher that compares vectors such as a3vse, vse or mmca"
        )


def _known(train: Pairing, pseudo: Pairing | None) -> Pairing:
    """The annotated pairs with all texts there are, which words are taken from; pseudo-sentences match none here."""
    if pseudo is None:
        return train
    texts = Texts((*train.texts.ids, *pseudo.texts.ids), (*train.texts.strings, *pseudo.texts.strings))
    return Pairing(train.visuals, texts, Matches(*train.matches.pairs(), (len(train.visuals), len(texts))))


def _model(settings: A3VSERecipe) -> Model:
    return Model(settings.matcher, settings.image, settings.text, settings.dim, settings.head, settings.model, settings)


def _stages(settings: A3VSERecipe, feed: Feed, extra: Extra = (), margin: float | None = None) -> tuple[Stage, ...]:
    """The triplet loss after a warm-up with all negatives (a3vse, Eq. 2), or InfoNCE."""
    optim = settings.optim
    loss = PairLoss(
        settings.loss,
        settings.margin if margin is None else margin,
        settings.top_k,
        settings.warmup_epochs,
        settings.temperature,
        stages=settings,
    )
    return pair_stages(loss, settings.epochs, feed, optim, settings.lr, optim.frozen, extra)


def _weak(settings: A3VSERecipe, stages: tuple[Stage, ...], adversary: Adversary | None) -> tuple[Stage, ...]:
    """The same stages with pseudo pairs and adversaries, which are one through all of them (a3vse, Eqs. 3 and 9)."""
    total, begun = sum(stage.epochs for stage in stages), 0
    beside = _stages(settings, stages[0].batches, margin=settings.pseudo_margin)
    found = []
    for stage, other in zip(stages, beside, strict=True):
        span = begun / total, (begun + stage.epochs) / total
        objective = WeakObjective(stage.objective, other.objective, settings.beta, adversary, span)
        found.append(replace(stage, objective=objective))
        begun += stage.epochs
    return tuple(found)


def _adversary(settings: A3VSERecipe, matcher: Matcher, inputs: Inputs) -> Adversary | None:
    terms = settings.adversary.terms
    return None if terms is None else Adversary(_size(matcher, inputs), terms)


@torch.no_grad()
def _size(matcher: Matcher, inputs: Inputs) -> int:
    """Length of a matcher's vectors."""
    words, mask = (tensor.cpu() for tensor in inputs.texts.texts(["a"]))
    return int(matcher.eval().encode_texts(words, mask).vectors.shape[1])
