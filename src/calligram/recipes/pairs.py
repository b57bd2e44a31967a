"""Program ``pairs``: towers, a matcher, weighted terms and a schedule, trained on images with their captions.

All presets of image-sentence matchers are settings of this program. A run is a composition: any term can be combined
with any matcher and any towers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from calligram.data.collection import Collection
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.features.inputs import Inputs
from calligram.features.pseudo.sentences import PseudoSettings
from calligram.models import catalog
from calligram.models.catalog import MATCHERS
from calligram.models.layers.towers import TwoTowerSettings
from calligram.models.matcher import Matcher
from calligram.models.vse import VSESettings
from calligram.recipes.parts.config import components
from calligram.recipes.parts.run import Plan, RunContext, load_start
from calligram.recipes.parts.run_settings import RARE, Dim, LearningRate, Optimisation, StageSettings, TrainedSettings
from calligram.recipes.parts.schedule import Schedule, trained_stages
from calligram.recipes.parts.terms import TERMS, Distillation, InfoNCE, Term
from calligram.recipes.parts.tower_settings import (
    ImageSettings,
    TextSettings,
    Towers,
)
from calligram.training.batches.batch import ExtraPairs
from calligram.training.loop import Evaluate

PRETRAINED = "pretrained"
NO_PSEUDO_PAIRS = PseudoSettings(images="none")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PretrainedModel:
    """A dual encoder of transformers, which brings its own towers."""

    regions: ClassVar[bool] = False
    reranks: ClassVar[bool] = False
    scores_vectors: ClassVar[bool] = True

    model: Annotated[str, "folder or hub name of a dual encoder, such as openai/clip-vit-base-patch32"] = ""


@dataclass(frozen=True)
class GivenMatcher:
    """A matcher object that the caller of ``calligram.fit`` made."""

    regions: ClassVar[bool] = False
    reranks: ClassVar[bool] = False
    scores_vectors: ClassVar[bool] = True

    source: Annotated[str, "where its class is defined"] = ""

    @classmethod
    def of(cls, matcher: Matcher) -> GivenMatcher:
        """Describe a matcher object."""
        return cls(f"{type(matcher).__module__}:{type(matcher).__qualname__}")


class MatcherSettingsCatalog:
    """Settings classes of matchers that can be built from two towers, by the name of the matcher."""

    def __getitem__(self, name: str) -> type[Any]:
        if name == PRETRAINED:
            return PretrainedModel
        found = MATCHERS[name].settings
        if not (isinstance(found, type) and issubclass(found, TwoTowerSettings)):
            raise UserError(
                f"matcher '{name}' is not built from two towers: its settings class must be a subclass of "
                "calligram.models.TwoTowerSettings; or build it in Python and give it to calligram.fit"
            )
        return found

    def __iter__(self) -> Iterator[str]:
        yield PRETRAINED
        for name in MATCHERS:
            if name not in ("cca", "weighted", "ensemble", "tags", PRETRAINED):
                yield name

    def __contains__(self, name: object) -> bool:
        return name in tuple(self)

    def name_of(self, settings: Any) -> str:
        """Return the name of the matcher that has these settings."""
        if isinstance(settings, PretrainedModel | GivenMatcher):
            return PRETRAINED if isinstance(settings, PretrainedModel) else "given"
        return MATCHERS.name_of_settings(type(settings))


MATCHER_SETTINGS = MatcherSettingsCatalog()


def build_matchers(settings: Sequence[Any], dim: int, towers: Towers, *, shared: bool = False) -> list[Matcher]:
    """Return matchers over the same towers: equal pretrained weights, and different random weights elsewhere.

    Args:
        shared: the towers of several matchers are one backbone and one text encoder, which the ensemble holds; the
            matchers then take their output as stored features.
    """
    image, text = towers.architectures
    if shared:
        if image.kind == "backbone" and towers.backbone is not None:
            image = replace(image, kind="features", feature_dim=towers.backbone.dim, backbone="")
        if text.kind == "bert" and towers.encoder is not None:
            text = replace(text, kind="states", state_dim=towers.encoder.dim, encoder="")
    made = (MATCHERS[MATCHER_SETTINGS.name_of(own)].matcher(own.with_towers(image, text, dim)) for own in settings)
    return [towers.with_pretrained_weights(matcher) for matcher in made]


def join_matchers(members: Sequence[Matcher], towers: Towers, *, shared: bool = False) -> Matcher:
    """Return the ensemble of several matchers, or the only one."""
    if len(members) == 1:
        return members[0]
    from calligram.models.ensemble import Ensemble, EnsembleSettings

    described = tuple(json.dumps(catalog.describe(member)) for member in members)
    image, text = towers.architectures
    backbone, encoder = (image.backbone, text.encoder) if shared else ("", "")
    made = Ensemble(EnsembleSettings(described, backbone, encoder))
    for number, member in enumerate(members):
        made.members[number] = member  # itself: a copy of its weights would not drop patches
    if backbone and towers.backbone is not None:
        made.image.load_state_dict(towers.backbone.state_dict())
        if towers.image.region_dropout:
            made.image.drop_patches(towers.image.region_dropout)
    if encoder and towers.encoder is not None:
        made.text["encoder"].load_state_dict(towers.encoder.state_dict())
    return made


def load_pretrained(
    settings: Any, *, fit: str, views: Literal["one", "flip", "ten"], max_pieces: int
) -> tuple[Matcher, Inputs, float]:
    """Return a dual encoder of transformers, its inputs and its temperature."""
    if not settings.model:
        raise UserError("matcher=pretrained needs a model: give --set pretrained.model= with a folder or a hub name")
    from calligram.models.pretrained import load_dual_encoder

    return load_dual_encoder(settings.model, fit=fit, views=views, max_pieces=max_pieces)


@dataclass(frozen=True)
class PairsSettings(TrainedSettings):
    """Settings of a run; the defaults suit a small network trained from scratch on a few thousand images."""

    in_stages: ClassVar[tuple[str, ...]] = (
        "epochs", "lr", "optim.*", "warmup_*", "batch", "texts", "epoch_of", "steps", "extra_pairs", "candidates",
        "first_stage", "pseudo.beta", "pseudo.margin", "image.train", "image.crop", "image.flip", "image.jitter",
        "image.*dropout",
    )  # fmt: skip
    """settings that a stage can change, besides those of terms; all others hold for the whole run"""

    matcher: Annotated[
        tuple[Any, ...], "matcher: how two towers give a score; several names for an ensemble that is trained together"
    ] = components(MATCHER_SETTINGS, "matcher", (VSESettings(),))
    dim: Dim = 256
    start: Annotated[
        str, "folder of a run whose weights training starts with; of an ensemble, the first member that fits", RARE
    ] = ""
    shared: Annotated[bool, "share one backbone and one text encoder among the members of an ensemble", RARE] = False
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)
    groups: Annotated[
        Literal["image", "identity"],
        "items that match: an image with its captions (image), or all images and captions of a person (identity)",
        RARE,
    ] = "image"
    batch: Annotated[int, "number of images in a batch, over all processes", (2, 1000000)] = 128
    texts: Annotated[int, "number of captions of each image in a batch", (1, 1000), RARE] = 1
    epoch_of: Annotated[
        Literal["pairs", "images"], "unit of an epoch: every pair once (pairs), or every image once (images)", RARE
    ] = "pairs"
    steps: Annotated[int, "number of steps of an epoch; 0 for one pass over the pairs", (0, 1000000), RARE] = 0
    extra_pairs: Annotated[
        ExtraPairs,
        "further pairs in a batch: second texts of the same images (neighbours), as many random pairs, or none",
        RARE,
    ] = "none"
    ignore_also_true: Annotated[
        bool, "leave out negatives that are known to be true matches; scenes know them", RARE
    ] = False
    pseudo: PseudoSettings = NO_PSEUDO_PAIRS
    terms: Annotated[tuple[Any, ...], "terms of the loss, whose weighted sum is minimised"] = components(
        TERMS, "term", (InfoNCE(),)
    )
    candidates: Annotated[
        int,
        "number of nearest texts per image and images per text that are scored besides the matches; 0 for all",
        (0, 1000000),
    ] = 0
    first_stage: Annotated[
        float | None,
        "weight of the same loss over the cosines of vectors; none for 1 where candidates is set, else 0",
        (0, 1000),
        RARE,
    ] = None
    dev_depth: Annotated[
        int,
        "number of candidates per query that are scored on dev after an epoch, retrieved by vectors; 0 for all",
        (0, 1000000),
        RARE,
    ] = 0
    epochs: Annotated[int, "number of epochs, warm-up included; 0 trains nothing", (0, 1000000)] = 12
    warmup_epochs: Annotated[
        int, "number of first epochs with all negatives of a batch, before terms of hard negatives", (0, 1000000), RARE
    ] = 0
    warmup_loss: Annotated[
        Literal["ranking", "infonce"],
        "loss of the warm-up; infonce separates pairs sooner, before the hardest negatives are used",
    ] = "ranking"
    lr: LearningRate = 1e-3
    optim: Optimisation = field(default_factory=Optimisation)
    stages: tuple[StageSettings, ...] = ()
    """schedule: changes to these settings in each stage; empty for one stage"""

    @property
    def teachers(self) -> dict[str, str]:
        """Other runs that this run learns from, by the setting that names each."""
        found = {key: run for key, run in (("start", self.start), ("pseudo.run", self.pseudo.run)) if run}
        for term in self.terms:
            found |= term.teachers
        return found

    @property
    def inert(self) -> frozenset[str]:
        """Settings without effect."""
        found = set() if len(self.matcher) > 1 else {"shared"}
        if not any(term.hard_negatives for term in self.terms):
            found |= {"warmup_epochs", "warmup_loss"}
        elif not self.warmup_epochs:
            found |= {"warmup_loss"}
        if any(isinstance(own, PretrainedModel) for own in self.matcher):
            found |= {"dim", "candidates", "first_stage", "dev_depth"}
        elif not any(own.reranks for own in self.matcher):
            found |= {"candidates", "first_stage", "dev_depth"}
        return frozenset(found)

    def __post_init__(self) -> None:
        if not self.matcher:
            raise UserError("matcher= names no matcher; give one or more, such as matcher=vse")
        if not self.terms:
            raise UserError("terms= names no term, so there is nothing to minimise; give one such as terms=infonce")
        for name in {term.name for term in self.terms}:
            if sum(term.name == name for term in self.terms) > 1:
                raise UserError(f"terms= names {name} twice; give it once, with another {name}.weight")
        if len(self.matcher) > 1 and any(isinstance(own, PretrainedModel) for own in self.matcher):
            raise UserError("a pretrained dual encoder cannot be a member of an ensemble that is trained together")
        if self.shared and len(self.matcher) > 1 and not (self.image.train or self.text.train):
            raise UserError(
                "shared=true is for networks that are trained; all members read the same stored features anyway"
            )

    @property
    def regions(self) -> bool:
        """Whether a matcher takes several parts of an image."""
        return any(own.regions for own in self.matcher)

    @property
    def further_texts(self) -> str:
        """Text file whose texts match no image and are in the batches too; empty for none."""
        distillation = self.term(Distillation)
        return "" if distillation is None else str(distillation.texts)

    def term(self, kind: type[Term]) -> Any:
        """Return the term of a class; None where there is none."""
        return next((term for term in self.terms if isinstance(term, kind)), None)


def plan_composition(
    settings: PairsSettings,
    collection: Collection,
    context: RunContext,
    given: tuple[Matcher, Inputs] | None = None,
) -> Plan:
    """Return inputs, the matcher or ensemble, and the stages.

    Args:
        given: a matcher object and its inputs, in place of towers and a matcher of the settings.
    """
    stages = trained_stages(settings)
    captions = _pairing(settings, collection, "train")
    train = captions.join_equal_texts()
    if settings.further_texts:
        from calligram.recipes.parts.pseudo_pairs import read_further_texts

        train = train.with_unmatched_texts(read_further_texts(settings.further_texts, collection))
    pseudo = None
    if settings.pseudo.images == "none" and any(term.name == "adversarial" for term in settings.terms):
        log.warning("pseudo.images=none makes no pseudo pairs, so the term adversarial has no effect")
    if settings.pseudo.images != "none":
        from calligram.recipes.parts.pseudo_pairs import pseudo_pairs_or_none

        pseudo = pseudo_pairs_or_none(collection, settings, context)
    start = catalog.load_matcher(Path(settings.start).expanduser()) if settings.start else None
    towers, temperature = None, None
    if given is not None:
        matcher, inputs = given
        members = [matcher]
    elif isinstance(settings.matcher[0], PretrainedModel):
        image, text = settings.image, settings.text
        matcher, inputs, temperature = load_pretrained(
            settings.matcher[0], fit=image.fit, views=image.views, max_pieces=text.max_words
        )
        members = [matcher]
    else:
        towers = _towers(settings, any(own.image.train for _, own in stages), train, pseudo, context, start)
        shared = settings.shared and len(settings.matcher) > 1
        members = build_matchers(settings.matcher, settings.dim, towers, shared=shared)
        matcher, inputs = join_matchers(members, towers, shared=shared), towers.inputs
    if towers is None:
        matcher.measure_vectors(*inputs.texts.texts(train.texts.strings[:1]))
    if start is not None:
        load_start(settings.start, start, matcher, inputs, train)
    trained = [(own.image, own.text) for own in (settings, *(own for _, own in stages))]
    if any(type(own.train) is int for pair in trained for own in pair):
        from calligram.recipes.parts.adapters import add_stage_adapters

        add_stage_adapters(matcher, trained)
    _check_candidates(settings, matcher)
    schedule = Schedule(settings, train, captions, pseudo, inputs, towers, matcher, members, context, temperature)
    persons = settings.groups == "identity"
    evaluate = _person_retrieval(inputs, _pairing(settings, collection, "dev"), context) if persons else None
    return Plan(
        matcher,
        inputs,
        schedule.stages(stages),
        settings.loop(),
        evaluate=evaluate,
        dev_depth=settings.dev_depth if settings.dev_depth and matcher.scoring.reranks else None,
        hashes={
            "pseudo pairs": pseudo.fingerprint if pseudo else "",
            "further texts": train.fingerprint if settings.further_texts else "",
        },
    )


def _pairing(settings: PairsSettings, collection: Collection, split: str) -> Pairing:
    return collection.identities(split) if settings.groups == "identity" else collection.sentences(split)


def _towers(
    settings: PairsSettings,
    trained: bool,
    train: Pairing,
    pseudo: Pairing | None,
    context: RunContext,
    start: catalog.StoredMatcher | None,
) -> Towers:
    """Return the towers; the backbone is trained where a stage trains it.

    Args:
        start: the run with whose weights training starts; its word table is taken.
    """
    image, words = settings.image, start.inputs.texts.vocabulary if start else None
    if image.views == "ten" and settings.regions:
        raise UserError("image.views=ten averages ten crops, whose cells show different places; take one or flip")
    if trained and not image.backbone:
        trained = False
    # The vocabulary has the words of pseudo-sentences too.
    vocabulary = train if pseudo is None else train.with_unmatched_texts(pseudo.texts)
    parts: Literal["vector", "grid"] = "grid" if settings.regions else "vector"
    return Towers(replace(image, train=trained), settings.text, vocabulary, context, parts, settings.seed, words)


def _check_candidates(settings: PairsSettings, matcher: Matcher) -> None:
    if not matcher.scoring.reranks and (settings.candidates or settings.first_stage):
        raise UserError(
            "candidates and first_stage are for matchers that score pairs by more than the cosine of vectors: scan, "
            "bfan and mmca (with mmca.alpha above 0); choose one of them, or leave both settings out"
        )


def _person_retrieval(inputs: Inputs, dev: Pairing, context: RunContext) -> Evaluate:
    from calligram.evaluation.recall import load_pairing
    from calligram.evaluation.retrieval import evaluate_retrieval

    loaded = load_pairing(inputs, dev, context.track)

    def evaluate(matcher: Matcher) -> Mapping[str, float]:
        found = evaluate_retrieval(matcher, inputs, dev, loaded=loaded).retrieval
        return {"rsum": found.rsum, **{f"t2i_r{k}": getattr(found.t2i, f"r{k}") for k in (1, 5, 10)}}

    return evaluate
