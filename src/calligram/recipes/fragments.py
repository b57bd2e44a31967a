"""Recipe ``fragments``: regions or cells of a picture and words of its captions, by any matcher of parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from calligram.data.collection import Collection
from calligram.recipes.embedding import ImageSettings, TextSettings
from calligram.recipes.fragment_models import (
    FragmentModels,
    check_fragments,
    extra_objectives,
    fragment_matcher,
    fragment_sides,
)
from calligram.recipes.optimisation import Optimisation
from calligram.recipes.plan import Plan, Surroundings
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

PRESETS: Mapping[str, tuple[str, ...]] = {
    "ours": (),
    "release": (
        "loss=ranking", "top_k=1", "margin=0.2", "warmup_epochs=0", "batch=128", "texts=1", "epoch_of=pairs",
        "epochs=30", "lr=2e-4", "average=0", "dim=1024", "text.hidden=1024", "text.word_dim=300", "text.min_count=4",
        "text.dropout=0", "text.blank=0", "optim.optimizer=adam", "optim.weight_decay=0", "optim.schedule=step",
        "optim.step_at=0.5", "optim.warmup=0", "optim.clip=2",
    ),
}  # fmt: skip
"""settings by name; the release's are scan's on Flickr30K"""


@dataclass(frozen=True)
class FragmentsRecipe(FragmentModels, StagedSettings, PairedSettings):
    """Settings of ``fragments``, among them those of each matcher (``scan.direction``, ``vsrn.layers``)."""

    presets: ClassVar[Mapping[str, tuple[str, ...]]] = PRESETS

    preset: Annotated[Literal["ours", "release"], "settings that others are laid over: ours, or scan's release's"] = (
        "ours"
    )
    matcher: Annotated[Literal["scan", "bfan", "vsrn", "a3vse", "mmca"], "how regions and words are compared"] = "scan"
    epochs: Annotated[int, "passes over the training pairs, warm-up included", (1, 1000000)] = 15
    warmup_epochs: Warmup = 1
    loss: LossKind = "infonce"
    margin: Margin = 0.2
    top_k: TopK = 1
    temperature: Annotated[float, "of InfoNCE at the start; it is learnt", (0.001, 100)] = 0.07
    lr: LearningRate = 5e-4
    dim: Dim = 512
    average: Average = 0.998
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(
        default_factory=lambda: TextSettings(
            word_dim=300, hidden=512, bidirectional=True, dropout=0.2, blank=None, pooling="mean"
        )
    )
    optim: Optimisation = field(default_factory=Optimisation)


def plan(settings: FragmentsRecipe, collection: Collection, around: Surroundings) -> Plan:
    """Inputs, matcher and stages."""
    image, text = settings.image, settings.text
    check_fragments(settings.matcher, image, text, settings)
    train = collection.sentences("train").join_equal_texts()
    sides = fragment_sides(image, text, train, around, settings.dim)
    matcher = fragment_matcher(settings.matcher, settings, sides)
    batches = pair_batches(settings, train, sides.inputs, around)
    settings.check_staged(matcher)
    loss = PairLoss(
        settings.loss, settings.margin, settings.top_k, settings.warmup_epochs, settings.temperature, stages=settings
    )
    extra, optim = extra_objectives(settings.matcher, settings, sides), settings.optim
    stages = pair_stages(loss, settings.epochs, batches, optim, settings.lr, optim.frozen, extra)
    return Plan(matcher, sides.inputs, stages, settings.loop(), dev_depth=settings.measured(matcher))
