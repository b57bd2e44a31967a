"""Recipe ``distil``: a matcher of vectors, distilled from the scores of a run that attends to pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from calligram.data.collection import Collection
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.evaluation.encode import encode_pairing, load_pairing
from calligram.models.catalog import MATCHERS, load_matcher
from calligram.models.layers.networks import HeadKind
from calligram.recipes.parts.matchers import FragmentModels, MatcherName, MatcherSettings, build_matcher
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import (
    Dim,
    EMADecay,
    Epochs,
    LearningRate,
    ModelFolder,
    Optimisation,
    PairedSettings,
    pair_batches,
)
from calligram.recipes.parts.towers import ImageSettings, TextSettings
from calligram.training.loop import Stage
from calligram.training.objectives.distillation import DistillationObjective, Teacher
from calligram.training.objectives.objective import InfoNCEObjective, JointObjective


@dataclass(frozen=True)
class DistilRecipe(FragmentModels, PairedSettings):
    """Settings of ``distil``.

    The student scores by the cosine of vectors. It is for collections that are too large to rerank candidates pair by
    pair. Its inputs may differ from those of the teacher.
    """

    teacher: Annotated[str, "folder of the run whose scores are distilled, such as one of mmca"] = ""
    matcher: Annotated[MatcherName, "student, a matcher that scores by vectors"] = "vse"
    distillation_weight: Annotated[float, "weight of the KL divergence from the scores of the teacher", (0, 1000)] = 1.0
    infonce_weight: Annotated[float, "weight of InfoNCE over the pairs", (0, 1000)] = 1.0
    teacher_temperature: Annotated[
        float, "divisor of the teacher's scores; a smaller one stresses its first candidates", (0.0001, 100)
    ] = 0.05
    temperature: Annotated[float, "initial temperature of the student's scores, which is trained", (0.001, 100)] = 0.07
    epochs: Epochs = 12
    lr: LearningRate = 5e-4
    dim: Dim = 512
    head: Annotated[HeadKind, "layers from image or text CNN features to the joint space, for vse and dual-path"] = (
        "linear"
    )
    model: ModelFolder = ""
    ema_decay: EMADecay = 0.998
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)
    optim: Optimisation = field(default_factory=Optimisation)

    @property
    def teachers(self) -> dict[str, str]:
        """The run whose scores are distilled."""
        return {"teacher": self.teacher} if self.teacher else {}

    def __post_init__(self) -> None:
        kind = MATCHERS.get(self.matcher)  # None for dual-path, which is vse with other settings
        vectors_only = self.matcher == "mmca" and not self.mmca.alpha
        if kind is not None and kind.matcher.reranks and not vectors_only:
            raise UserError(
                f"matcher={self.matcher} scores pairs by more than their vectors, and distil trains a matcher of "
                "vectors: vse, dual-path, two-branch, pretrained, vsrn, a3vse, or mmca with mmca.alpha=0"
            )
        if not self.distillation_weight:
            raise UserError(
                "distillation_weight=0 leaves the teacher out; give a larger weight, or train with recipe vse"
            )


def plan(settings: DistilRecipe, collection: Collection, context: RunContext) -> Plan:
    """Return inputs, the student, and one stage with the encodings of the teacher."""
    if not settings.teacher:
        raise UserError("recipe distil needs --set teacher= with the folder of the run whose scores are distilled")
    train = collection.sentences("train").join_equal_texts()
    model = MatcherSettings(
        settings.matcher, settings.image, settings.text, settings.dim, settings.head, settings.model, settings
    )
    matcher, inputs, extra = build_matcher(model, train, context)
    distillation = DistillationObjective(
        load_teacher(settings.teacher, train, context), settings.teacher_temperature, settings.temperature
    )
    infonce = InfoNCEObjective(settings.temperature)
    objective = JointObjective((settings.infonce_weight, infonce), (settings.distillation_weight, distillation), *extra)
    batches, optim = pair_batches(settings, train, inputs, context), settings.optim
    stage = Stage(
        "distil", settings.epochs, objective, batches, optim.build, settings.lr, optim.part_lr(), optim.frozen,
        optim.factor(), optim.clip, optim.accumulate,
    )  # fmt: skip
    return Plan(matcher, inputs, (stage,), settings.loop())


def load_teacher(run: str, train: Pairing, context: RunContext) -> Teacher:
    """Return the matcher of a run with the encodings of all training items, made from the run's own inputs."""
    stored = load_matcher(Path(run).expanduser()).to(context.device)
    matcher = stored.matcher
    loaded = load_pairing(stored.inputs, train, context.track)
    return Teacher(matcher, *encode_pairing(matcher, stored.inputs, loaded, context.track))
