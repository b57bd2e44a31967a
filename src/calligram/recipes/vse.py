"""Recipe ``vse``: a visual-semantic embedding from pixels, a backbone or stored features, by hinge or softmax loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from calligram.data.collection import Collection
from calligram.models.heads import HeadKind
from calligram.recipes.embedding import ImageSettings, Sides, TextSettings, check_sides
from calligram.recipes.instance_classes import ClassifierSettings, classifier, instance_classes
from calligram.recipes.optimisation import Optimisation
from calligram.recipes.plan import Plan, Surroundings
from calligram.recipes.run_settings import (
    BatchSize,
    Dim,
    EpochOf,
    LearningRate,
    LossKind,
    Margin,
    PairedSettings,
    TextsPerImage,
    TopK,
    Warmup,
)
from calligram.recipes.stages import PairLoss, pair_batches, pair_stages


@dataclass(frozen=True)
class VSERecipe(PairedSettings):
    """Settings of ``vse``; the defaults suit a small network trained from scratch on a few thousand pictures."""

    epochs: Annotated[int, "passes over the training pairs, warm-up included", (1, 1000000)] = 12
    warmup_epochs: Warmup = 2
    batch: BatchSize = 64
    texts: TextsPerImage = 3
    epoch_of: EpochOf = "images"
    loss: LossKind = "infonce"
    margin: Margin = 0.2
    top_k: TopK = 1
    temperature: Annotated[float, "of InfoNCE at the start; it is learnt", (0.001, 100)] = 0.07
    instance: Annotated[float, "weight of the instance loss of dual-path beside this one; 0 for none", (0, 1000)] = 0.0
    lr: LearningRate = 4e-3
    dim: Dim = 256
    head: Annotated[
        HeadKind, "maps image features into it, and a text CNN's: one layer, or two as dual-path's paper or release"
    ] = "linear"
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)
    classifier: ClassifierSettings = field(default_factory=ClassifierSettings)
    optim: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        check_sides(self.image, self.text)


def plan(settings: VSERecipe, collection: Collection, around: Surroundings) -> Plan:
    """Inputs, matcher and stages."""
    by_image = collection.sentences("train")
    train = by_image.join_equal_texts()
    image, text = settings.image, settings.text
    sides = Sides(image, text, train, around, dim=settings.dim, head=settings.head)
    matcher = sides.matcher()
    classes = instance_classes(settings.classifier, by_image, sides, settings.seed) if settings.instance else None
    batches = pair_batches(settings, train, sides.inputs, around, classes=classes)
    loss = PairLoss(settings.loss, settings.margin, settings.top_k, settings.warmup_epochs, settings.temperature)
    weight, optim = settings.instance, settings.optim
    extra = ((weight, classifier(settings.classifier, sides, matcher, classes)),) if classes else ()
    stages = pair_stages(loss, settings.epochs, batches, optim, settings.lr, optim.frozen, extra)
    return Plan(matcher, sides.inputs, stages, settings.loop())
