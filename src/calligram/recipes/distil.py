"""Recipe ``distil``: a matcher of vectors that follows the scores of a run which attends to pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from calligram.data.collection import Collection
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.evaluation.encode import encode_pairing, load_pairing
from calligram.models.catalog import MATCHERS
from calligram.models.layers.networks import HeadKind
from calligram.models.load import load_matcher
from calligram.recipes.parts.matchers import FragmentModels, MatcherName, MatcherSettings, build_matcher
from calligram.recipes.parts.pair_stages import pair_batches
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import Average, Dim, LearningRate, Optimisation, PairedSettings
from calligram.recipes.parts.towers import ImageSettings, TextSettings
from calligram.training.loop import Stage
from calligram.training.objectives.distillation import DistillationObjective, Teacher
from calligram.training.objectives.objective import InfoNCEObjective, JointObjective


@dataclass(frozen=True)
class DistilRecipe(FragmentModels, PairedSettings):
    """Settings of ``distil``.

    What is trained scores by the cosine of vectors, so that a collection too large to put candidates in order by pairs
    gets some of what that would give. Its inputs need not be the teacher's.
    """

    teacher: Annotated[str, "run folder of the matcher whose scores are followed, such as mmca's"] = ""
    matcher: Annotated[MatcherName, "what is trained: one that scores by vectors"] = "vse"
    follow: Annotated[float, "weight of the divergence from the teacher's scores", (0, 1000)] = 1.0
    pairs: Annotated[float, "weight of InfoNCE over the pairs themselves", (0, 1000)] = 1.0
    of_teacher: Annotated[
        float, "what the teacher's scores are divided by; the smaller, the more its first candidates count",
        (0.0001, 100),
    ] = 0.05  # fmt: skip
    temperature: Annotated[float, "of the scores that learn, at the start; it is learnt", (0.001, 100)] = 0.07
    epochs: Annotated[int, "passes over the training pairs", (1, 1000000)] = 12
    lr: LearningRate = 5e-4
    dim: Dim = 512
    head: Annotated[HeadKind, "maps image features into it, and a text CNN's; for vse and dual-path"] = "linear"
    model: Annotated[str, "folder or hub name of a dual encoder, for matcher=pretrained"] = ""
    average: Average = 0.998
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)
    optim: Optimisation = field(default_factory=Optimisation)

    @property
    def teachers(self) -> dict[str, str]:
        """The one that is followed."""
        return {"teacher": self.teacher} if self.teacher else {}

    def __post_init__(self) -> None:
        kind = MATCHERS.get(self.matcher)  # dual-path is vse by its settings
        vectors_alone = self.matcher == "mmca" and not self.mmca.alpha
        if kind is not None and kind.matcher.reranks and not vectors_alone:
            raise UserError(
                f"matcher={self.matcher} scores pairs itself; distil trains one that scores by vectors: "
                "vse, dual-path, two-branch, pretrained, vsrn, a3vse, or mmca with mmca.alpha=0"
            )
        if not self.follow:
            raise UserError("follow=0 leaves the teacher out; give a larger weight, or train with recipe vse")


def plan(settings: DistilRecipe, collection: Collection, around: RunContext) -> Plan:
    """Inputs, matcher, and one stage that knows the teacher's encodings."""
    if not settings.teacher:
        raise UserError("recipe distil needs --set teacher= with the run folder of the matcher to follow")
    train = collection.sentences("train").join_equal_texts()
    model = MatcherSettings(
        settings.matcher, settings.image, settings.text, settings.dim, settings.head, settings.model, settings
    )
    matcher, inputs, extra = build_matcher(model, train, around)
    follow = DistillationObjective(
        teacher_of(settings.teacher, train, around), settings.of_teacher, settings.temperature
    )
    pairs = InfoNCEObjective(settings.temperature)
    objective = JointObjective((settings.pairs, pairs), (settings.follow, follow), *extra)
    batches, optim = pair_batches(settings, train, inputs, around), settings.optim
    stage = Stage(
        "distil", settings.epochs, objective, batches, optim.build, settings.lr, optim.part_lr(), optim.frozen,
        optim.factor(), optim.clip, optim.accumulate,
    )  # fmt: skip
    return Plan(matcher, inputs, (stage,), settings.loop())


def teacher_of(run: str, train: Pairing, around: RunContext) -> Teacher:
    """The matcher of a run, with all training items as its own inputs show them."""
    stored = load_matcher(Path(run).expanduser()).to(around.device)
    matcher = stored.matcher
    loaded = load_pairing(stored.inputs, train, around.track)
    return Teacher(matcher, *encode_pairing(matcher, stored.inputs, loaded, around.track))
