"""Recipe ``vse``: a visual-semantic embedding from pixels, a backbone or stored features, by hinge or softmax loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from calligram.data.collection import Collection
from calligram.features.pixels import Augment
from calligram.models.heads import HeadKind
from calligram.recipes.embedding import ImageSettings, Sides, TextSettings, check_sides
from calligram.recipes.instance_classes import ClassifierSettings, classifier, instance_classes
from calligram.recipes.optimisation import Optimisation
from calligram.recipes.plan import Plan, Surroundings
from calligram.recipes.stages import PairLoss, pair_stages
from calligram.training.batch import Batches
from calligram.training.loop import Loop, Precision
from calligram.training.samplers import PairSampler


@dataclass(frozen=True)
class VSERecipe:
    """Settings of ``vse``; the defaults suit a small network trained from scratch on a few thousand pictures."""

    seed: Annotated[int, "source of all randomness", (0, 4611686018427387904)] = 0
    epochs: Annotated[int, "passes over the training pairs, warm-up included", (1, 1000000)] = 12
    warmup_epochs: Annotated[int, "first epochs that use all negatives before top_k hardest ones", (0, 1000000)] = 2
    batch: Annotated[int, "images in a batch, over all processes", (2, 1000000)] = 64
    texts: Annotated[int, "captions that come with each image of a batch", (1, 1000)] = 3
    epoch_of: Annotated[Literal["pairs", "images"], "an epoch takes all pairs, or every image once"] = "images"
    loss: Annotated[Literal["ranking", "infonce"], "triplet hinge or symmetric InfoNCE"] = "infonce"
    margin: Annotated[float, "of the hinge", (0, 100)] = 0.2
    top_k: Annotated[int | None, "hardest negatives per anchor that count, or none for all", (1, 1000000)] = 1
    temperature: Annotated[float, "of InfoNCE at the start; it is learnt", (0.001, 100)] = 0.07
    instance: Annotated[float, "weight of the instance loss of dual-path beside this one; 0 for none", (0, 1000)] = 0.0
    ignore_also_true: Annotated[bool, "leave out negatives known to be true; scenes know them"] = False
    lr: Annotated[float, "learning rate", (0, 1000)] = 4e-3
    dim: Annotated[int, "size of the joint space", (1, 65536)] = 256
    head: Annotated[
        HeadKind, "maps image features into it, and a text CNN's: one layer, or two as dual-path's paper or release"
    ] = "linear"
    precision: Annotated[Precision, "arithmetic of the network"] = "fp32"
    average: Annotated[float, "decay of the weight average that is evaluated and saved; 0 for none", (0, 0.999999)] = (
        0.99
    )
    save_steps: Annotated[
        int, "save the state every so many steps, besides after every epoch; 0 for not", (0, 1000000000)
    ] = 0
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
    per_image = settings.epoch_of == "images"
    batches = Batches(
        train,
        sides.inputs,
        PairSampler(train.matches, settings.batch, settings.seed, texts=settings.texts, per_image=per_image),
        augment=Augment(image.crop, image.flip, image.jitter),
        blank=text.blank,
        device=around.device,
        processes=around.processes,
        ignore_also_true=settings.ignore_also_true,
        classes=classes,
        track=around.track,
    )
    loop = Loop(settings.seed, settings.precision, settings.average, save_steps=settings.save_steps)
    loss = PairLoss(settings.loss, settings.margin, settings.top_k, settings.warmup_epochs, settings.temperature)
    weight, optim = settings.instance, settings.optim
    extra = ((weight, classifier(settings.classifier, sides, matcher, classes)),) if classes else ()
    stages = pair_stages(loss, settings.epochs, batches, optim, settings.lr, optim.frozen, extra)
    return Plan(matcher, sides.inputs, stages, loop)
