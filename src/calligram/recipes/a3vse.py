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
from calligram.models.layers.networks import HeadKind
from calligram.models.matcher import Matcher
from calligram.recipes.parts.matchers import (
    ExtraObjectives,
    FragmentModels,
    MatcherName,
    MatcherSettings,
    build_matcher,
)
from calligram.recipes.parts.pair_stages import PairLoss, pair_batches, plan_pair_stages
from calligram.recipes.parts.pseudo_pairs import PseudoSettings, make_pseudo_pairs
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import (
    Average,
    Dim,
    LearningRate,
    LossKind,
    Margin,
    Optimisation,
    PairedSettings,
    StagedSettings,
    TopK,
    Warmup,
)
from calligram.recipes.parts.towers import ImageSettings, TextSettings
from calligram.training.batches.pair_sampler import PairSampler, derived_seed
from calligram.training.batches.pseudo_pairs import PseudoPairBatches, RepeatedPasses
from calligram.training.loop import BatchSource, Stage
from calligram.training.objectives.pseudo_pairs import Adversary, AdversaryTerms, PseudoPairObjective

# Settings of the A3VSE paper, where it gives them (a3vse, Sec. 4.3).

PRESETS: Mapping[str, tuple[str, ...]] = {
    "ours": (),
    # The rate is given as 0.00005 before and after the 16th of 24 epochs: taken for ten times as much before.
    "paper": (
        "loss=ranking", "top_k=1", "margin=0.2", "pseudo_margin=0.3", "warmup_epochs=0", "beta=0.8", "epochs=24",
        "batch=128", "texts=1", "epoch_of=pairs", "lr=0.0005", "average=0", "dim=512", "text.hidden=512",
        "text.word_dim=300", "text.min_count=4", "text.max_words=82", "text.dropout=0", "text.blank=0",
        "optim.optimizer=adam", "optim.weight_decay=0.000001", "optim.schedule=step", "optim.step_at=0.667",
        "optim.warmup=0", "optim.clip=2", "pseudo.repeats=true", "pseudo.most=36",
        "pseudo.attributes=all", "pseudo.label_least=0.3", "pseudo.naming=own",
    ),
}  # fmt: skip
"""settings by name"""


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


def plan(settings: A3VSERecipe, collection: Collection, around: RunContext) -> Plan:
    """Inputs, matcher and stages, with pseudo pairs where there are any."""
    _model(settings).check()  # before pseudo-sentences are made, which takes long
    train = collection.sentences("train").join_equal_texts()
    pseudo = _pseudo(settings, collection, around)
    matcher, inputs, extra = build_matcher(_model(settings), _known(train, pseudo), around)
    settings.check_staged(matcher)
    steps = settings.steps
    own = pair_batches(settings, train, inputs, around)
    if pseudo is None:
        feed: BatchSource = RepeatedPasses(own, steps) if steps else own
        return Plan(
            matcher, inputs, _stages(settings, feed, extra), settings.loop(), dev_depth=settings.measured(matcher)
        )
    size = settings.pseudo_batch or settings.batch
    sampler = PairSampler(pseudo.matches, size, derived_seed(settings.seed, "pseudo"))
    feed = PseudoPairBatches(own, pair_batches(settings, pseudo, inputs, around, sampler=sampler), steps)
    stages = _weak(settings, _stages(settings, feed, extra), _adversary(settings, matcher, inputs))
    return Plan(
        matcher, inputs, stages, settings.loop(), dev_depth=settings.measured(matcher), pseudo=pseudo.fingerprint
    )


def _pseudo(settings: A3VSERecipe, collection: Collection, around: RunContext) -> Pairing | None:
    """Pseudo pairs; None where none are wanted or there are too few to tell apart, which is said."""
    if settings.pseudo.of == "none":
        return None
    if settings.pseudo.of == "unannotated" and not len(collection.unannotated("train")):
        log.info("every training image has captions: no pseudo pairs and no adversarial terms")
        return None
    _check_adversary(settings)
    found = make_pseudo_pairs(collection, settings.pseudo, around)
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


def _model(settings: A3VSERecipe) -> MatcherSettings:
    return MatcherSettings(
        settings.matcher, settings.image, settings.text, settings.dim, settings.head, settings.model, settings
    )


def _stages(
    settings: A3VSERecipe, feed: BatchSource, extra: ExtraObjectives = (), margin: float | None = None
) -> tuple[Stage, ...]:
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
    return plan_pair_stages(loss, settings.epochs, feed, optim, settings.lr, optim.frozen, extra)


def _weak(settings: A3VSERecipe, stages: tuple[Stage, ...], adversary: Adversary | None) -> tuple[Stage, ...]:
    """The same stages with pseudo pairs and adversaries, which are one through all of them (a3vse, Eqs. 3 and 9)."""
    total, begun = sum(stage.epochs for stage in stages), 0
    beside = _stages(settings, stages[0].batches, margin=settings.pseudo_margin)
    found = []
    for stage, other in zip(stages, beside, strict=True):
        span = begun / total, (begun + stage.epochs) / total
        objective = PseudoPairObjective(stage.objective, other.objective, settings.beta, adversary, span)
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
