"""The schedule of a run: its stages, and the objective and batches of each."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from calligram.data.pairing import Pairing
from calligram.errors import UserError, unknown
from calligram.features.inputs import Inputs
from calligram.models.matcher import Matcher
from calligram.recipes.parts.config import settings_of_stage
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.run_settings import StageSettings
from calligram.recipes.parts.terms import TERMS, InfoNCE, Instance, Neighbourhood, Offline, Ranking, Term, TermContext
from calligram.recipes.parts.tower_settings import Towers
from calligram.training.batches.batch import Batches, BatchSource, NeighbourhoodSampler, PairSampler, derived_seed
from calligram.training.loop import Stage
from calligram.training.objectives.objective import EnsembleObjective, JointObjective, Objective
from calligram.training.runs import Run

if TYPE_CHECKING:
    from calligram.recipes.pairs import PairsSettings
    from calligram.recipes.parts.mined_negatives import MinedNegatives
    from calligram.training.objectives.pseudo_pairs import Adversary

log = logging.getLogger(__name__)

StagesWithSettings = list[tuple[StageSettings, "PairsSettings"]]


def trained_stages(settings: PairsSettings) -> StagesWithSettings:
    """Return the stages that train something, each with the settings that hold in it (rounds of aoq, Sec. 3.2).

    A stage that mines and restarts exists for the term offline. Without that term it is left out. Where its negatives
    are given, the earlier stages are left out.
    """
    found: StagesWithSettings = []
    for each in settings.stages or (StageSettings(),):
        own = settings_of_stage(settings, each)
        for name in each.without:
            if name not in TERMS and name not in {term.name for term in own.terms}:
                raise unknown("term", name, TERMS)
        terms = tuple(term for term in own.terms if term.weight and term.name not in each.without)
        if not own.epochs or not any(term.name != "adversarial" for term in terms):
            continue
        own = replace(own, terms=terms)
        if "mine" in each.on_start and not _mines(own):
            if "restart" in each.on_start:
                if own.term(Offline) is None:
                    continue
                found.clear()
            each = replace(each, on_start=())
        found.append((each, own))
    if settings.epochs and not found:
        raise UserError(
            "no stage trains anything: every stage has epochs=0 or no term of a weight above 0; give epochs and a term"
        )
    if found and _mines(found[0][1]):
        raise UserError(
            "the term offline needs mined negatives in the first stage: give offline.negatives= with a folder made by "
            '"calligram mine" or with a run, or mine at the start of a later stage as preset aoq does '
            "(stages.2.on_start=mine)"
        )
    return found


def _mines(settings: PairsSettings) -> bool:
    """Whether a term needs negatives that the run mines itself."""
    offline = settings.term(Offline)
    return offline is not None and not offline.negatives


class Schedule:
    """Builds the stages of a run: objectives of all terms, batches, and what happens at the start of a stage.

    Stages with the same settings of a term share its weights: the classifier of stage I continues in stage II
    (dual-path, Sec. V).
    """

    def __init__(
        self,
        settings: PairsSettings,
        train: Pairing,
        captions: Pairing,
        pseudo: Pairing | None,
        inputs: Inputs,
        towers: Towers | None,
        matcher: Matcher,
        members: Sequence[Matcher],
        context: RunContext,
        temperature: float | None = None,
    ) -> None:
        self.settings, self.train, self.captions, self.pseudo = settings, train, captions, pseudo
        self.inputs, self.towers, self.matcher, self.members = inputs, towers, matcher, members
        self.context, self.temperature = context, temperature
        self._classes = self._class_labels()
        self._batches: dict[tuple[bool, bool], Batches] = {}
        self._objectives: dict[Any, Objective] = {}
        self._shared: list[dict[str, Any]] = [{} for _ in members]
        self._initial: Mapping[str, Tensor] = {}
        self._minings = 0  # number of stages so far that mine

    def stages(self, planned: StagesWithSettings) -> tuple[Stage, ...]:
        """Return the stages; those of hard negatives begin with a warm-up stage."""
        found: list[tuple[Stage, PairsSettings]] = []
        starts: list[int] = []
        for each, own in planned:
            if "restart" in each.on_start:
                starts.append(len(found))
                # Nothing is trained yet, so these copies have the initial weights of all objectives.
                self._objectives, self._shared = copy.deepcopy((self._objectives, self._shared))
                self._initial = {k: v.detach().clone() for k, v in self.matcher.state_dict().items()}
            found += self._with_warmup(each, own)
        return self._with_pseudo_pairs(found, starts) if self.pseudo is not None else tuple(stage for stage, _ in found)

    def _with_warmup(self, each: StageSettings, own: PairsSettings) -> list[tuple[Stage, PairsSettings]]:
        """Return the stages of one stage of the settings, each with the settings that hold in it."""
        hard = [term for term in own.terms if term.hard_negatives]
        warm = min(own.warmup_epochs, own.epochs) if hard else 0
        if own.term(Offline) and warm >= own.epochs:
            raise UserError(
                f"warmup_epochs={own.warmup_epochs} leaves none of epochs={own.epochs} for offline negatives; give "
                "more epochs or a shorter warm-up"
            )
        if hard and warm >= own.epochs:
            log.warning(
                "warmup_epochs=%d covers all of epochs=%d, so no step takes the hardest negatives; give more epochs or "
                "a shorter warm-up", own.warmup_epochs, own.epochs,
            )  # fmt: skip
        name = each.name or "+".join(term.name for term in own.terms if term.name != "adversarial")
        self._minings += "mine" in each.on_start
        mined = self._mined_negatives(own)
        begin, resume = self._on_start(each, mined) if _mines(own) or each.on_start else (None, None)
        found = []
        if warm:
            warm_up = _warm_settings(own)
            found.append((self._stage(f"{name}, warm-up", warm, warm_up), warm_up))
        if own.epochs > warm:
            found.append((self._stage(name, own.epochs - warm, own, mined.sampler if mined else None), own))
        return [
            (
                replace(stage, resets_best=each.resets_best and not number, on_start=resume if number else begin),
                settings,
            )
            for number, (stage, settings) in enumerate(found)
        ]

    def _stage(self, name: str, epochs: int, own: PairsSettings, sampler: PairSampler | None = None) -> Stage:
        frozen = self._frozen(own)
        modules = self._module_names("image") if frozen else ()
        batches = self._feed(own, sampler or self._sampler(own), frozen=frozen)
        optim = replace(own.optim, lr_scale=self._lr_scale(own.optim.lr_scale))
        return optim.stage(name, epochs, self._objective(own), batches, own.lr, modules)

    def _frozen(self, own: PairsSettings) -> bool:
        """Whether the backbone that other stages train is frozen in this one, so that its features are stored."""
        return self.towers is not None and bool(self.towers.image.train) and not own.image.train

    # Objectives

    def _objective(self, own: PairsSettings, *, pseudo: bool = False) -> Objective:
        """Return the weighted sum of the terms, for each member of an ensemble on its own (dual-path, Eq. 9)."""
        found = [self._joint(own, number, pseudo=pseudo) for number in range(len(self.members))]
        return found[0] if len(found) == 1 else EnsembleObjective(found)

    def _joint(self, own: PairsSettings, member: int, *, pseudo: bool) -> Objective:
        parts = [
            (term.weight, self._of_term(term, own, member, pseudo=pseudo))
            for term in own.terms
            if term.name != "adversarial" and (term.for_pseudo_pairs or not pseudo)
        ]
        return parts[0][1] if len(parts) == 1 and parts[0][0] == 1 else JointObjective(*parts)

    def _of_term(self, term: Term, own: PairsSettings, member: int, *, pseudo: bool) -> Objective:
        """Return the objective of a term; stages with the same settings of a term share it."""
        matcher = self.members[member]
        key = (member, pseudo, replace(term, weight=1.0), own.candidates, own.first_stage)
        if key not in self._objectives:
            made = term.build(self._term_context(own, member, pseudo=pseudo))
            if not isinstance(made, Objective):
                raise UserError(
                    f"build() of the term '{term.name}' returned {type(made).__name__}; it must return an Objective "
                    "(calligram.training.objectives.objective)"
                )
            if term.of_scores and matcher.scoring.reranks and (own.candidates or own.first_stage):
                from calligram.training.objectives.candidates import RetrieveRerankObjective

                made = RetrieveRerankObjective(made, own.candidates, own.first_stage)
            self._objectives[key] = made
        return self._objectives[key]

    def _term_context(self, own: PairsSettings, member: int, *, pseudo: bool) -> TermContext:
        return TermContext(
            self.members[member], self.towers, self.train, self.captions, self.context, own.seed, self.temperature,
            self._classes, own.text.effective_word_dropout, {} if pseudo else self._shared[member],
        )  # fmt: skip

    def _class_labels(self) -> Any:
        """Return the classes of the instance loss; None where no stage has it."""
        instance = self.settings.term(Instance)
        if instance is None:
            return None
        from calligram.recipes.parts.instance_classifier import group_classes

        return group_classes(instance, self.captions, self.train, self.towers, self.settings.seed)

    # Batches

    def _feed(self, own: PairsSettings, sampler: PairSampler, *, frozen: bool) -> BatchSource:
        batches = self._loaded(own, frozen=frozen).with_sampler(sampler)
        if self.pseudo is None:
            if not own.steps:
                return batches
            from calligram.training.batches.pseudo_pairs import RepeatedPasses

            return RepeatedPasses(batches, own.steps)
        from calligram.training.batches.pseudo_pairs import PseudoPairBatches

        of_pseudo = PairSampler(self.pseudo.matches, own.batch, derived_seed(own.seed, "pseudo"))
        others = self._loaded(own, frozen=frozen, pseudo=True).with_sampler(of_pseudo)
        return PseudoPairBatches(batches, others, own.steps)

    def _loaded(self, own: PairsSettings, *, frozen: bool, pseudo: bool = False) -> Batches:
        """Return batches of items that are loaded once for all stages."""
        key = (pseudo, frozen)
        if key not in self._batches:
            pairing = self.pseudo if pseudo else self.train
            assert pairing is not None
            inputs = self.towers.frozen_inputs() if frozen and self.towers is not None else self.inputs
            self._batches[key] = Batches(
                pairing,
                inputs,
                PairSampler(pairing.matches, own.batch, own.seed),
                augment=own.image.augment,
                word_dropout=own.text.effective_word_dropout,
                device=self.context.device,
                processes=self.context.processes,
                ignore_also_true=own.ignore_also_true,
                classes=None if pseudo else self._classes,
                track=self.context.track,
            )
        return self._batches[key].with_augment(own.image.augment)

    def _sampler(self, own: PairsSettings) -> PairSampler:
        term = own.term(Neighbourhood)
        if term is not None and any(term.weights[2:]) and own.extra_pairs != "neighbours" and own.texts < 2:
            raise UserError(
                "neighbourhood constraints need several texts of an image in a batch: give extra_pairs=neighbours, or "
                "texts=2 or more"
            )
        if own.further_texts not in ("", self.settings.further_texts):
            raise UserError("distillation.texts holds for the whole run; give it without a stage")
        if own.further_texts:
            from calligram.training.batches.pseudo_pairs import FurtherTextSampler

            return FurtherTextSampler(self._pair_sampler(own), own.seed)
        return self._pair_sampler(own)

    def _pair_sampler(self, own: PairsSettings) -> PairSampler:
        matches, per_image = self.train.matches, own.epoch_of == "images"
        if own.extra_pairs != "none":
            return NeighbourhoodSampler(
                matches, own.batch, own.seed, extra=own.extra_pairs, texts=own.texts, per_image=per_image
            )
        return PairSampler(matches, own.batch, own.seed, texts=own.texts, per_image=per_image)

    # Offline negatives

    def _mined_negatives(self, own: PairsSettings) -> MinedNegatives | None:
        """Return the lists of offline negatives and their sampler; None where no term uses them."""
        if own.term(Offline) is None:
            return None
        if own.extra_pairs != "none":
            raise UserError("the term offline draws its own pairs; give extra_pairs=none in stages with offline")
        if own.further_texts:
            raise UserError("the term offline draws its own texts; leave distillation.texts out where offline is used")
        from calligram.recipes.parts.mined_negatives import MinedNegatives

        return MinedNegatives.of(own, self.train, self.context, self._minings)

    def _on_start(self, each: StageSettings, mined: MinedNegatives | None) -> tuple[Any, Any]:
        """Return the functions that are called at the start of the first and of later sub-stages."""
        restarts = "restart" in each.on_start
        if mined is None:
            return (self._restart if restarts else None), None
        if "mine" not in each.on_start:
            return mined.use_lists, mined.use_lists
        initial = self._initial

        def begin(matcher: Matcher, run: Run, fresh: bool) -> bool:
            return mined.begin(matcher, run, fresh, initial if restarts else None)

        return begin, mined.use_lists

    def _restart(self, matcher: Matcher, run: Run, fresh: bool) -> bool:
        """Set all weights back to their initial values."""
        del run
        if fresh:
            matcher.load_state_dict(dict(self._initial))
        return fresh

    def _with_pseudo_pairs(
        self, stages: Sequence[tuple[Stage, PairsSettings]], starts: Sequence[int]
    ) -> tuple[Stage, ...]:
        """Add the losses of pseudo pairs and the discriminators, which all stages share (a3vse, Eqs. 3 and 9).

        Args:
            starts: numbers of the stages that restart with initial weights, also of the discriminators.
        """
        from calligram.training.objectives.pseudo_pairs import PseudoPairObjective

        total, begun, found = sum(stage.epochs for stage, _ in stages), 0, []
        adversary = self._adversary()
        for number, (stage, own) in enumerate(stages):
            if number in starts:
                adversary = copy.deepcopy(adversary)  # nothing is trained yet
            span = begun / total, (begun + stage.epochs) / total
            margin = own.pseudo.margin
            terms = tuple(replace(t, margin=margin) if isinstance(t, Ranking) else t for t in own.terms)
            if not any(term.for_pseudo_pairs for term in terms):
                raise UserError("pseudo pairs need one of the terms ranking, infonce, neighbourhood and logistic")
            of_pseudo = self._objective(replace(own, terms=terms), pseudo=True)
            own_adversary = adversary if any(term.name == "adversarial" for term in own.terms) else None
            objective = PseudoPairObjective(stage.objective, of_pseudo, own.pseudo.beta, own_adversary, span)
            found.append(replace(stage, objective=objective))
            begun += stage.epochs
        return tuple(found)

    def _adversary(self) -> Adversary | None:
        term = next((term for term in self.settings.terms if term.name == "adversarial"), None)
        return None if term is None else term.adversary(self.matcher.vector_size)

    def _module_names(self, name: str) -> tuple[str, ...]:
        """Return the names of a tower's module in the matcher, or in each member of an ensemble."""
        if len(self.members) == 1 or (self.settings.shared and name in ("image", "text.encoder")):
            return (name,)
        return tuple(f"members.{number}.{name}" for number in range(len(self.members)))

    def _lr_scale(self, parts: Sequence[str]) -> tuple[str, ...]:
        """Return learning-rate factors by the module names of the matcher, without networks that are not trained."""
        found: list[str] = []
        for part in parts:
            name, sign, factor = part.partition(":")
            if self.towers is not None:
                image, text = self.towers.architectures
                if {"image": image.kind == "features", "text.encoder": text.kind != "bert"}.get(name, False):
                    continue
            found += [f"{module}{sign}{factor}" for module in self._module_names(name)]
        return tuple(found)


def _warm_settings(own: PairsSettings) -> PairsSettings:
    """Return the settings of a warm-up: hard negatives are replaced by all negatives of a batch.

    Another loss of scores, such as InfoNCE, needs no replacement: terms of hard negatives are left out then.
    """
    terms: list[Term] = []
    needed = not any(term.of_scores and not term.hard_negatives for term in own.terms)
    for term in own.terms:
        if not term.hard_negatives:
            terms.append(term)
        elif needed:
            warm = Ranking(weight=term.weight, margin=getattr(term, "margin", 0.2), top_k=None)
            terms.append(InfoNCE(weight=term.weight) if own.warmup_loss == "infonce" else warm)
            needed = False
    return replace(own, terms=tuple(terms))
