"""Recipe ``aoq``: any matcher in two rounds, the second with negatives mined by the first (aoq)."""

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
from calligram.models.catalog import RUN_FILE, load_matcher
from calligram.models.layers.networks import HeadKind
from calligram.models.matcher import Matcher
from calligram.recipes.parts.matchers import FragmentModels, MatcherName, MatcherSettings, build_matcher
from calligram.recipes.parts.mined_negatives import NEGATIVES, MinedNegatives, MinedNegativesSettings, Miner
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import (
    BatchSize,
    CandidateSettings,
    Dim,
    EpochOf,
    LearningRate,
    ModelFolder,
    Optimisation,
    PairedSettings,
    PairLoss,
    SparseSettings,
    TextsPerImage,
    WeightedObjectives,
    pair_batches,
    plan_pair_stages,
)
from calligram.recipes.parts.towers import ImageSettings, TextSettings
from calligram.training.batches.mined_negatives import OfflineSampler
from calligram.training.loop import Stage
from calligram.training.objectives.objective import JointObjective
from calligram.training.objectives.offline import OfflineObjective, OfflineTerms
from calligram.training.runs import Run

_PAIRS = ("batch=128", "texts=1", "epoch_of=pairs")

_FRAGMENTS = (
    *_PAIRS, "epochs=15", "warmup_epochs=1", "lr=0.0005", "dim=512", "ema_decay=0.998", "text.word_dim=300",
    "text.hidden=512", "text.bidirectional=true", "text.dropout=0.2", "text.word_dropout=0.1",
)  # fmt: skip

PRESETS: dict[str, tuple[str, ...]] = {
    "dual-path": (
        *_PAIRS, "text.network=cnn", "text.word_dim=300", "text.dropout=0.2", "text.word_dropout=0.1", "image.crop=0.5",
        "image.jitter=0.3", "head=paper", "dim=1024", "lr=0.001", "ema_decay=0.998",
    ),
    "pretrained": (*_PAIRS, "epochs=5", "warmup_epochs=0", "lr=0.00001", "image.crop=0.7", "optim.warmup=0.05"),
    "scan": _FRAGMENTS,
    "bfan": _FRAGMENTS,
    "vsrn": _FRAGMENTS,
    "a3vse": (*_FRAGMENTS, "text.bidirectional=false"),
    "mmca": (*_FRAGMENTS, "dim=256"),
}  # fmt: skip
"""settings of each matcher that replace the defaults below: sizes and rates of the matcher's own recipe"""

MINE_SPARSE_HINT = "give negatives= a run folder without mined lists, which then mines here, or leave negatives out"
"""for sparse settings: ``calligram mine`` reads a collection on disk, which has all captions"""


@dataclass(frozen=True)
class AOQRecipe(FragmentModels, CandidateSettings, PairedSettings):
    """Settings of ``aoq``: losses and their parameters are those of the paper, sizes those of the matcher's own recipe.

    Settings of one matcher are named by it (``scan.direction``, ``vsrn.layers``).

    Without ``negatives``, a first round trains with online negatives and mines; a second round starts from scratch.
    """

    presets: ClassVar[Mapping[str, tuple[str, ...]]] = PRESETS
    preset_by: ClassVar[str] = "matcher"

    matcher: Annotated[MatcherName, "matcher that is trained; it changes the defaults below"] = "vse"
    loss: Annotated[
        Literal["online", "offline-triplet", "offline-quintuplet", "adaptive"], "loss: Eq. 2, 3, 4 or 5 of aoq"
    ] = "adaptive"
    negatives: Annotated[
        str,
        'folder made by "calligram mine", or of a run that mines (a teacher); empty for a first round that mines',
    ] = ""
    epochs: Annotated[int, "number of epochs of a round, warm-up included", (1, 1000000)] = 12
    first_epochs: Annotated[int, "number of epochs of the first round; 0 for as many as the second", (0, 1000000)] = 0
    warmup_epochs: Annotated[int, "number of first epochs of a round with all negatives of a batch", (0, 1000000)] = 4
    warmup_loss: Annotated[
        Literal["ranking", "infonce"],
        "loss of the warm-up; infonce separates pairs sooner, before the hardest negatives are used",
    ] = "ranking"
    batch: BatchSize = 64
    texts: TextsPerImage = 3
    epoch_of: EpochOf = "images"
    margin: Annotated[float, "margin of online negatives, gamma_1", (0, 100)] = 0.2
    offline_margin: Annotated[float, "margin of offline negatives, gamma_2", (-100, 100)] = 0.0
    alpha: Annotated[float, "difference of scores that changes an online weight by one, alpha", (0.001, 1000)] = 0.3
    beta: Annotated[float, "online weight where the scores are equal, beta", (0, 1000)] = 1.5
    online: Annotated[bool, "keep the online term; false for OnlyOffline of Table 3"] = True
    derive: Annotated[
        Literal["offline", "online"],
        "source of the negative pairs without the anchor, of the quintuplet; online for OnlineQuin of Table 3",
    ] = "offline"
    weigh_by: Annotated[
        Literal["offline", "positive"],
        "score that adaptive weights are relative to; positive for w/o OfflineAdap of Table 3",
    ] = "offline"
    squared: Annotated[bool, "square every hinge (aoq, Sec. 3.3)"] = False
    fine_tune: Annotated[
        bool, "continue the second round from the weights of the first instead of from scratch (Table 3)"
    ] = False
    mined: MinedNegativesSettings = field(default_factory=MinedNegativesSettings)
    lr: LearningRate = 1e-3
    dim: Dim = 256
    head: Annotated[HeadKind, "layers from image or text CNN features to the joint space, for vse and dual-path"] = (
        "linear"
    )
    model: ModelFolder = ""
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)
    optim: Optimisation = field(default_factory=Optimisation)

    @property
    def teachers(self) -> dict[str, str]:
        """The run that mines, or whose mined lists are used."""
        return {"negatives": self.negatives} if self.negatives and self.loss != "online" else {}

    def __post_init__(self) -> None:
        if self.loss == "online":
            return
        if self.warmup_epochs >= self.epochs:
            raise UserError(
                f"warmup_epochs={self.warmup_epochs} leaves none of epochs={self.epochs} for offline negatives; "
                "give more epochs or a shorter warm-up"
            )
        if not self.online and self.loss != "offline-quintuplet":
            raise UserError("online=false needs loss=offline-quintuplet; the other losses need an online term")
        if self.fine_tune and self.negatives:
            raise UserError(
                "fine_tune continues from the first round, and negatives= leaves that round out; give one of them"
            )


def plan(settings: AOQRecipe, collection: Collection, context: RunContext) -> Plan:
    """Plan one round with given or online negatives, or two rounds with mining in between (aoq, Sec. 3.2)."""
    train = collection.sentences("train").join_equal_texts()
    matcher, inputs, extra = build_matcher(_model(settings), train, context)
    settings.check_candidates(matcher)
    rounds = _Rounds(settings, train, inputs, context)
    if settings.loss == "online":
        stages = rounds.online("", settings.epochs, extra)
    elif settings.negatives:
        rounds.sampler.set_negatives(_given_negatives(settings, train, context))
        stages = rounds.offline("", extra)
    else:
        stages = rounds.online("round 1", settings.first_epochs or settings.epochs, extra)
        # Objectives have weights too; like the matcher, they start from scratch in the second round.
        stages += rounds.second(matcher, extra if settings.fine_tune else deepcopy(extra))
    return Plan(matcher, inputs, stages, settings.loop(), dev_depth=settings.dev_candidates(matcher))


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
    """Return the pairs that are not used as negatives."""
    if settings.ignore_also_true and train.also_true is not None:
        return train.matches.plus(train.also_true)
    return train.matches


def _given_negatives(settings: AOQRecipe, train: Pairing, context: RunContext) -> NegativeLists:
    """Return the negatives of a folder, or mine with a run that has no mined lists."""
    folder = Path(settings.negatives).expanduser()
    if (folder / RUN_FILE).is_file() and not (folder / NEGATIVES).is_dir():
        teacher = load_matcher(folder).to(context.device)
        found = _miner(settings, train, context).mine(teacher.matcher, teacher.inputs)
    else:
        mend = MINE_HINT if settings.sparse == SparseSettings() else MINE_SPARSE_HINT
        found = NegativeLists.open(folder / NEGATIVES if (folder / RUN_FILE).is_file() else folder).aligned_to(
            train, mend
        )
    return found.truncated(settings.mined.texts, settings.mined.images)


def _miner(settings: AOQRecipe, train: Pairing, context: RunContext) -> Miner:
    return Miner(settings.mined, train, context, settings.ignore_also_true)


class _Rounds:
    """Makes the stages of both rounds."""

    def __init__(self, settings: AOQRecipe, train: Pairing, inputs: Inputs, context: RunContext) -> None:
        self.settings, self.train, self.inputs, self.context = settings, train, inputs, context
        self._initial: dict[str, Tensor] = {}
        self.sampler = OfflineSampler(
            train.matches,
            settings.batch,
            settings.seed,
            distribution=settings.mined.spread,
            excluded=_excluded(settings, train),
            derived=settings.loss != "online" and _terms(settings).derived,
            texts=settings.texts,
            per_image=settings.epoch_of == "images",
        )
        self._mined = MinedNegatives(_miner(settings, train, context), self.sampler)
        self._online = pair_batches(settings, train, inputs, context)
        self._offline = self._online.with_sampler(self.sampler)

    def online(self, name: str, epochs: int, extra: WeightedObjectives, warmup: int | None = None) -> tuple[Stage, ...]:
        """A round with the online triplet loss (aoq, Eqs. 1 and 2); its best epoch is selected after the warm-up."""
        settings, optim = self.settings, self.settings.optim
        epochs_before = settings.warmup_epochs if warmup is None else warmup
        loss = PairLoss("ranking", settings.margin, 1, epochs_before, 0.07, settings.warmup_loss, settings)
        stages = plan_pair_stages(loss, epochs, self._online, optim, settings.lr, optim.frozen, extra)
        *warm, last = (replace(stage, name=f"{name}, {stage.name}" if name else stage.name) for stage in stages)
        return (*warm, replace(last, resets_best=bool(warm)))

    def offline(self, name: str, extra: WeightedObjectives, warmup: int | None = None) -> tuple[Stage, ...]:
        """A round with offline negatives after the warm-up (aoq, Eqs. 3-5)."""
        *warm, last = self.online(name, self.settings.epochs, extra, warmup)
        settings = self.settings
        objective = settings.with_candidates(OfflineObjective(_terms(settings)))
        whole = JointObjective((1.0, objective), *extra) if extra else objective
        named = f"{name}, {settings.loss}" if name else settings.loss
        return (*warm, replace(last, name=named, objective=whole, batches=self._offline))

    def second(self, matcher: Matcher, extra: WeightedObjectives) -> tuple[Stage, ...]:
        """The round after mining, from the present weights; its best epoch is selected within the round."""
        fine = self.settings.fine_tune
        self._initial = {} if fine else {k: v.detach().clone() for k, v in matcher.state_dict().items()}
        first, *rest = self.offline("round 2", extra, 0 if fine else None)
        return (
            replace(first, resets_best=True, on_start=self._begin),
            *(replace(stage, on_start=self._mined.use_lists) for stage in rest),
        )

    def _begin(self, matcher: Matcher, run: Run, fresh: bool) -> bool:
        """Mine with the matcher of the first round, then start from scratch or continue from its weights."""
        return self._mined.begin(matcher, run, fresh, None if self.settings.fine_tune else self._initial)
