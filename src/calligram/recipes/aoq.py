"""Recipe ``aoq``: any matcher in two rounds, the second with hard negatives mined by the first (aoq)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from calligram.data.collection import Collection
from calligram.data.matches import Matches
from calligram.data.negatives import MINE_HINT, NegativeLists
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.features.inputs import Inputs
from calligram.models.layers.networks import HeadKind
from calligram.models.load import RUN_FILE, load_matcher
from calligram.models.matcher import Matcher
from calligram.recipes.parts.matchers import (
    ExtraObjectives,
    FragmentModels,
    MatcherName,
    MatcherSettings,
    build_matcher,
)
from calligram.recipes.parts.mined_negatives import NEGATIVES, MinedNegatives, MinedNegativesSettings, Miner
from calligram.recipes.parts.pair_stages import PairLoss, pair_batches, plan_pair_stages
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import (
    BatchSize,
    Dim,
    EpochOf,
    LearningRate,
    Optimisation,
    PairedSettings,
    SparseSettings,
    StagedSettings,
    TextsPerImage,
)
from calligram.recipes.parts.towers import ImageSettings, TextSettings
from calligram.training.batches.mined_negatives import OfflineSampler
from calligram.training.loop import Stage
from calligram.training.objectives.objective import JointObjective
from calligram.training.objectives.offline import OfflineObjective, OfflineTerms
from calligram.training.runs import Run

# What each matcher lays over the defaults of recipe ``aoq``: the sizes and rates of its own recipe.

_PAIRS = ("batch=128", "texts=1", "epoch_of=pairs")

_FRAGMENTS = (
    *_PAIRS, "epochs=15", "warmup_epochs=1", "lr=0.0005", "dim=512", "average=0.998", "text.word_dim=300",
    "text.hidden=512", "text.bidirectional=true", "text.dropout=0.2", "text.blank=0.1",
)  # fmt: skip

PRESETS: dict[str, tuple[str, ...]] = {
    "dual-path": (
        *_PAIRS, "text.network=cnn", "text.word_dim=300", "text.dropout=0.2", "text.blank=0.1", "image.crop=0.5",
        "image.jitter=0.3", "head=paper", "dim=1024", "lr=0.001", "average=0.998",
    ),
    "pretrained": (*_PAIRS, "epochs=5", "warmup_epochs=0", "lr=0.00001", "image.crop=0.7", "optim.warmup=0.05"),
    "scan": _FRAGMENTS,
    "bfan": _FRAGMENTS,
    "vsrn": _FRAGMENTS,
    "a3vse": (*_FRAGMENTS, "text.bidirectional=false"),
    "mmca": (*_FRAGMENTS, "dim=256"),
}  # fmt: skip


_MINE_SPARSE = "give negatives=RUN (a run without lists of its own mines for itself), or leave negatives out"
"""where captions were left out: no collection on disk is what is trained on"""


@dataclass(frozen=True)
class AOQRecipe(FragmentModels, StagedSettings, PairedSettings):
    """Settings of ``aoq``: losses and their parameters are the paper's, sizes those of each matcher's own recipe.

    Those of one matcher alone are named by it (``scan.direction``, ``vsrn.layers``).

    Without ``negatives`` a first round trains with online negatives and mines; then a second one starts from scratch.
    """

    presets: ClassVar[Mapping[str, tuple[str, ...]]] = PRESETS
    preset_by: ClassVar[str] = "matcher"

    matcher: Annotated[MatcherName, "what is trained; each lays settings of its own over those below"] = "vse"
    loss: Annotated[
        Literal["online", "offline-triplet", "offline-quintuplet", "adaptive"], "of aoq: Eq. 2, 3, 4 or 5"
    ] = "adaptive"
    negatives: Annotated[
        str, 'folder that "calligram mine" made, or a run to mine with (a teacher); empty for a first round'
    ] = ""
    epochs: Annotated[int, "passes over the training pairs in a round, warm-up included", (1, 1000000)] = 12
    first_epochs: Annotated[int, "those of the first round; 0 for as many as the second", (0, 1000000)] = 0
    warmup_epochs: Annotated[int, "first epochs of a round that use all negatives of a batch", (0, 1000000)] = 4
    warmup_loss: Annotated[
        Literal["ranking", "infonce"], "their loss; infonce tells pairs apart sooner, before the hardest negatives come"
    ] = "ranking"
    batch: BatchSize = 64
    texts: TextsPerImage = 3
    epoch_of: EpochOf = "images"
    margin: Annotated[float, "gamma_1, of online negatives", (0, 100)] = 0.2
    offline_margin: Annotated[float, "gamma_2, of offline ones", (-100, 100)] = 0.0
    alpha: Annotated[float, "gap of scores that changes an online weight by one", (0.001, 1000)] = 0.3
    beta: Annotated[float, "online weight where there is no gap", (0, 1000)] = 1.5
    online: Annotated[bool, "keep the online term; without it, Table 3's OnlyOffline"] = True
    derive: Annotated[
        Literal["offline", "online"], "where pairs that share nothing come from; online is Table 3's OnlineQuin"
    ] = "offline"
    weigh_by: Annotated[
        Literal["offline", "positive"], "score that weights compare with; positive is Table 3's w/o OfflineAdap"
    ] = "offline"
    squared: Annotated[bool, "square every hinge (Sec. 3.3)"] = False
    fine_tune: Annotated[bool, "let the second round go on from the first instead of from scratch (Table 3)"] = False
    hard: MinedNegativesSettings = field(default_factory=MinedNegativesSettings)
    lr: LearningRate = 1e-3
    dim: Dim = 256
    head: Annotated[HeadKind, "maps image features into it, and a text CNN's; for vse and dual-path"] = "linear"
    model: Annotated[str, "folder or hub name of a dual encoder, for matcher=pretrained"] = ""
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)
    optim: Optimisation = field(default_factory=Optimisation)

    @property
    def teachers(self) -> dict[str, str]:
        """The one that mines, or whose lists are taken."""
        return {"negatives": self.negatives} if self.negatives and self.loss != "online" else {}

    def __post_init__(self) -> None:
        if self.loss == "online":
            return
        if self.warmup_epochs >= self.epochs:
            raise UserError(
                f"warmup_epochs={self.warmup_epochs} leaves none of epochs={self.epochs} for the offline negatives; "
                "give more epochs or a shorter warm-up"
            )
        if not self.online and self.loss != "offline-quintuplet":
            raise UserError("online=false is for loss=offline-quintuplet; other losses have an online term")
        if self.fine_tune and self.negatives:
            raise UserError("fine_tune goes on from the first round, which negatives= leaves out; give one of them")


def plan(settings: AOQRecipe, collection: Collection, around: RunContext) -> Plan:
    """One round with given negatives or online ones; else two in one loop, with mining between them (aoq, Sec. 3.2)."""
    train = collection.sentences("train").join_equal_texts()
    matcher, inputs, extra = build_matcher(_model(settings), train, around)
    settings.check_staged(matcher)
    rounds = _Rounds(settings, train, inputs, around)
    if settings.loss == "online":
        stages = rounds.online("", settings.epochs, extra)
    elif settings.negatives:
        rounds.sampler.set_negatives(_given(settings, train, around))
        stages = rounds.offline("", extra)
    else:
        stages = rounds.online("round 1", settings.first_epochs or settings.epochs, extra)
        # Objectives own weights too, and those begin anew with the matcher's.
        stages += rounds.second(matcher, extra if settings.fine_tune else deepcopy(extra))
    return Plan(matcher, inputs, stages, settings.loop(), dev_depth=settings.measured(matcher))


def _model(settings: AOQRecipe) -> MatcherSettings:
    return MatcherSettings(
        settings.matcher, settings.image, settings.text, settings.dim, settings.head, settings.model, settings
    )


def _terms(settings: AOQRecipe) -> OfflineTerms:
    assert settings.loss != "online"
    return OfflineTerms(
        settings.loss, settings.margin, settings.offline_margin, settings.alpha, settings.beta, settings.online,
        settings.derive, settings.weigh_by, settings.squared,
    )  # fmt: skip


def _excluded(settings: AOQRecipe, train: Pairing) -> Matches:
    """Pairs that are no negatives."""
    if settings.ignore_also_true and train.also_true is not None:
        return train.matches.plus(train.also_true)
    return train.matches


def _given(settings: AOQRecipe, train: Pairing, around: RunContext) -> NegativeLists:
    """Negatives of a folder, or those that a run finds; the lists that this recipe's own runs keep are taken as is."""
    folder = Path(settings.negatives).expanduser()
    if (folder / RUN_FILE).is_file() and not (folder / NEGATIVES).is_dir():
        teacher = load_matcher(folder).to(around.device)
        found = _miner(settings, train, around).mined(teacher.matcher, teacher.inputs)
    else:
        mend = MINE_HINT if settings.sparse == SparseSettings() else _MINE_SPARSE
        found = NegativeLists.open(folder / NEGATIVES if (folder / RUN_FILE).is_file() else folder).aligned_to(
            train, mend
        )
    return found.truncated(settings.hard.texts, settings.hard.images)


def _miner(settings: AOQRecipe, train: Pairing, around: RunContext) -> Miner:
    return Miner(settings.hard, train, around, settings.ignore_also_true)


class _Rounds:
    """The stages of both rounds."""

    def __init__(self, settings: AOQRecipe, train: Pairing, inputs: Inputs, around: RunContext) -> None:
        self.settings, self.train, self.inputs, self.around = settings, train, inputs, around
        self._initial: dict[str, Tensor] = {}
        self.sampler = OfflineSampler(
            train.matches,
            settings.batch,
            settings.seed,
            distribution=settings.hard.spread,
            excluded=_excluded(settings, train),
            derived=settings.loss != "online" and _terms(settings).derived,
            texts=settings.texts,
            per_image=settings.epoch_of == "images",
        )
        self._own = MinedNegatives(_miner(settings, train, around), self.sampler)
        self._plain = pair_batches(settings, train, inputs, around)
        self._offline = self._plain.with_sampler(self.sampler)

    def online(self, name: str, epochs: int, extra: ExtraObjectives, warmup: int | None = None) -> tuple[Stage, ...]:
        """A round of the online triplet loss (aoq, Eqs. 1 and 2), chosen after its warm-up: it must show that loss."""
        settings, optim = self.settings, self.settings.optim
        epochs_before = settings.warmup_epochs if warmup is None else warmup
        loss = PairLoss("ranking", settings.margin, 1, epochs_before, 0.07, settings.warmup_loss, settings)
        stages = plan_pair_stages(loss, epochs, self._plain, optim, settings.lr, optim.frozen, extra)
        *warm, last = (replace(stage, name=f"{name}, {stage.name}" if name else stage.name) for stage in stages)
        return (*warm, replace(last, resets_best=bool(warm)))

    def offline(self, name: str, extra: ExtraObjectives, warmup: int | None = None) -> tuple[Stage, ...]:
        """A round whose epochs after the warm-up have offline negatives (aoq, Eqs. 3-5)."""
        *warm, last = self.online(name, self.settings.epochs, extra, warmup)
        settings = self.settings
        objective = settings.staged(OfflineObjective(_terms(settings)))
        whole = JointObjective((1.0, objective), *extra) if extra else objective
        named = f"{name}, {settings.loss}" if name else settings.loss
        return (*warm, replace(last, name=named, objective=whole, batches=self._offline))

    def second(self, matcher: Matcher, extra: ExtraObjectives) -> tuple[Stage, ...]:
        """The round after mining, from the matcher as it is now; chosen anew, to show what offline negatives do."""
        fine = self.settings.fine_tune
        self._initial = {} if fine else {k: v.detach().clone() for k, v in matcher.state_dict().items()}
        first, *rest = self.offline("round 2", extra, 0 if fine else None)
        return (
            replace(first, resets_best=True, on_start=self._begin),
            *(replace(stage, on_start=self._own.take) for stage in rest),
        )

    def _begin(self, matcher: Matcher, run: Run, fresh: bool) -> bool:
        """Mine with the first round's matcher, and begin from scratch or go on from it."""
        return self._own.begin(matcher, run, fresh, None if self.settings.fine_tune else self._initial)
