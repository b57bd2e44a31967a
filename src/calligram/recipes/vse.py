"""Recipe ``vse``: a visual-semantic embedding, from pixels or stored features, with hinge or softmax loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.features.inputs import Inputs
from calligram.features.pixels import Augment, PixelInput
from calligram.features.stored import StoredInput
from calligram.features.vocabulary import Vocabulary
from calligram.models.vse import VSE, VSESettings
from calligram.recipes.optimisation import Optimisation
from calligram.recipes.plan import Plan, Surroundings
from calligram.training.batch import Batches
from calligram.training.loop import Loop, Precision, Stage
from calligram.training.objectives import InfoNCEObjective, Objective, RankingObjective
from calligram.training.samplers import PairSampler


@dataclass(frozen=True)
class ImageSettings:
    """The image side."""

    features: Annotated[str, "name of feature arrays stored with the collection; empty trains a CNN on pixels"] = ""
    size: Annotated[int, "side of the square that pictures are resized to"] = 64
    fit: Annotated[Literal["squash", "crop"], "keep all of the picture, distorted, or its middle square"] = "squash"
    channels: Annotated[tuple[int, ...], "width of the CNN's blocks"] = (32, 64, 128, 256)
    grid: Annotated[int, "cells per side that the CNN's last map is pooled to"] = 4
    crop: Annotated[float, "smallest share of a picture that a random training crop keeps"] = 0.7
    flip: Annotated[bool, "mirror half of the training pictures; harmful where captions say left and right"] = False
    jitter: Annotated[float, "largest random change of brightness, contrast and saturation"] = 0.0


@dataclass(frozen=True)
class TextSettings:
    """The text side."""

    min_count: Annotated[int, "words seen less often in the training captions are unknown"] = 2
    max_words: Annotated[int, "longer captions are cut"] = 60
    word_dim: Annotated[int, "size of word vectors"] = 300
    bidirectional: Annotated[bool, "read captions both ways"] = True
    pooling: Annotated[Literal["last", "mean", "max"], "how a caption's states become its vector"] = "max"
    dropout: Annotated[float, "share of word-vector entries set to zero in training"] = 0.1


@dataclass(frozen=True)
class VSERecipe:
    """Settings of ``vse``."""

    seed: Annotated[int, "source of all randomness"] = 0
    epochs: Annotated[int, "passes over the training pairs, warm-up included"] = 30
    warmup_epochs: Annotated[int, "first epochs that use all negatives before top_k hardest ones"] = 2
    batch: Annotated[int, "pairs in a batch, over all processes"] = 128
    epoch_of: Annotated[Literal["pairs", "images"], "an epoch takes all pairs, or one pair of every image"] = "pairs"
    loss: Annotated[Literal["ranking", "infonce"], "triplet hinge or symmetric InfoNCE"] = "ranking"
    margin: Annotated[float, "of the hinge"] = 0.2
    top_k: Annotated[int | None, "hardest negatives per anchor that count, or none for all"] = 1
    temperature: Annotated[float, "of InfoNCE at the start; it is learnt"] = 0.07
    ignore_also_true: Annotated[bool, "leave out negatives known to be true; scenes know them"] = False
    lr: Annotated[float, "learning rate"] = 5e-4
    dim: Annotated[int, "size of the joint space"] = 512
    precision: Annotated[Precision, "arithmetic of the network"] = "fp32"
    average: Annotated[float, "decay of the weight average that is evaluated and saved; 0 for none"] = 0.99
    save_steps: Annotated[int, "save the state every so many steps, besides after every epoch; 0 for not"] = 0
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)
    optim: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise UserError(f"epochs must be at least 1, got {self.epochs}")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k must be at least 1 or none, got {self.top_k}")


def plan(settings: VSERecipe, collection: Collection, around: Surroundings) -> Plan:
    """Inputs, matcher and stages."""
    train = collection.sentences("train").join_equal_texts()
    vocabulary = Vocabulary.build(train.texts.strings, settings.text.min_count, settings.text.max_words)
    image = settings.image
    source = StoredInput(image.features) if image.features else PixelInput(image.size, image.fit)
    inputs = Inputs(source, vocabulary)
    feature_dim = collection.features[image.features].row_shape[-1] if image.features in collection.features else 0
    matcher = VSE(
        VSESettings(
            vocabulary=len(vocabulary),
            dim=settings.dim,
            image="features" if image.features else "cnn",
            feature_dim=feature_dim,
            channels=image.channels,
            grid=image.grid,
            word_dim=settings.text.word_dim,
            bidirectional=settings.text.bidirectional,
            pooling=settings.text.pooling,
            dropout=settings.text.dropout,
        )
    )
    sampler = PairSampler(train.matches, settings.batch, settings.seed, per_image=settings.epoch_of == "images")
    batches = Batches(
        train,
        inputs,
        sampler,
        augment=Augment(image.crop, image.flip, image.jitter),
        device=around.device,
        processes=around.processes,
        ignore_also_true=settings.ignore_also_true,
        track=around.track,
    )
    loop = Loop(settings.seed, settings.precision, settings.average, save_steps=settings.save_steps)
    return Plan(matcher, inputs, stages(settings, batches), loop)


def stages(settings: VSERecipe, batches: Batches) -> tuple[Stage, ...]:
    """One stage, or a warm-up with all negatives before the hardest ones."""

    def stage(name: str, epochs: int, objective: Objective) -> Stage:
        optim = settings.optim
        return Stage(
            name, epochs, objective, batches, optim.build, settings.lr, optim.part_lr(), (), optim.factor(), optim.clip,
            optim.accumulate,
        )  # fmt: skip

    if settings.loss == "infonce":
        return (stage("infonce", settings.epochs, InfoNCEObjective(settings.temperature)),)
    warm = 0 if settings.top_k is None else min(settings.warmup_epochs, settings.epochs)
    hard = RankingObjective(settings.margin, settings.top_k)
    every = RankingObjective(settings.margin)
    return tuple(
        stage(name, epochs, objective)
        for name, epochs, objective in (("warm-up", warm, every), ("ranking", settings.epochs - warm, hard))
        if epochs
    )
