"""Recipes with one loss over image-caption pairs: ``vse``, ``fragments`` and ``pretrained``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.features.images.pixels import Augment
from calligram.models.layers.networks import HeadKind
from calligram.recipes.parts.instance_classifier import ClassifierSettings, classifier, group_classes
from calligram.recipes.parts.matchers import (
    FragmentModels,
    check_fragments,
    extra_objectives,
    fragment_matcher,
    fragment_towers,
)
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import (
    BatchSize,
    CandidateSettings,
    Dim,
    EMADecay,
    EpochOf,
    EpochsWithWarmup,
    LearningRate,
    LossKind,
    Margin,
    Optimisation,
    PairedSettings,
    PairLoss,
    Temperature,
    TextsPerImage,
    TopK,
    WarmupEpochs,
    pair_batches,
    plan_pair_stages,
)
from calligram.recipes.parts.towers import ImageSettings, TextSettings, Towers, check_towers
from calligram.training.batches.batch import Batches

RELEASE_OF_SCAN = (
    "loss=ranking", "top_k=1", "margin=0.2", "warmup_epochs=0", "batch=128", "texts=1", "epoch_of=pairs",
    "epochs=30", "lr=2e-4", "ema_decay=0", "dim=1024", "text.hidden=1024", "text.word_dim=300", "text.min_count=4",
    "text.dropout=0", "text.word_dropout=0", "optim.optimizer=adam", "optim.weight_decay=0", "optim.schedule=step",
    "optim.step_at=0.5", "optim.warmup=0", "optim.clip=2",
)  # fmt: skip
"""settings of the release of scan on Flickr30K"""
MIN_TEMPERATURE = 0.01
"""InfoNCE keeps its temperature above this value, and does not train a temperature below it (SigLIP starts there)"""


@dataclass(frozen=True)
class VSERecipe(PairedSettings):
    """Settings of ``vse``; the defaults suit a small network trained from scratch on a few thousand images."""

    epochs: EpochsWithWarmup = 12
    warmup_epochs: WarmupEpochs = 2
    batch: BatchSize = 64
    texts: TextsPerImage = 3
    epoch_of: EpochOf = "images"
    loss: LossKind = "infonce"
    margin: Margin = 0.2
    top_k: TopK = 1
    temperature: Temperature = 0.07
    instance: Annotated[float, "weight of the instance loss of dual-path; 0 for none", (0, 1000)] = 0.0
    lr: LearningRate = 4e-3
    dim: Dim = 256
    head: Annotated[
        HeadKind,
        "layers from image features, or text CNN features, to the joint space: one (linear), or two as in the paper or "
        "release of dual-path",
    ] = "linear"
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)
    classifier: ClassifierSettings = field(default_factory=ClassifierSettings)
    optim: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        check_towers(self.image, self.text)


def plan_vse(settings: VSERecipe, collection: Collection, context: RunContext) -> Plan:
    """Return inputs, matcher and stages."""
    by_image = collection.sentences("train")
    train = by_image.join_equal_texts()
    image, text = settings.image, settings.text
    towers = Towers(image, text, train, context, dim=settings.dim, head=settings.head)
    matcher = towers.matcher()
    classes = group_classes(settings.classifier, by_image, towers, settings.seed) if settings.instance else None
    batches = pair_batches(settings, train, towers.inputs, context, classes=classes)
    loss = PairLoss(settings.loss, settings.margin, settings.top_k, settings.warmup_epochs, settings.temperature)
    weight, optim = settings.instance, settings.optim
    extra = ((weight, classifier(settings.classifier, towers, matcher, classes)),) if classes else ()
    stages = plan_pair_stages(loss, settings.epochs, batches, optim, settings.lr, optim.frozen, extra)
    return Plan(matcher, towers.inputs, stages, settings.loop())


@dataclass(frozen=True)
class FragmentsRecipe(FragmentModels, CandidateSettings, PairedSettings):
    """Settings of ``fragments``; those of one matcher are named by it (``scan.direction``, ``vsrn.layers``)."""

    presets: ClassVar[Mapping[str, tuple[str, ...]]] = {"ours": (), "release": RELEASE_OF_SCAN}

    preset: Annotated[Literal["ours", "release"], "base settings: ours, or those of the release of scan"] = "ours"
    matcher: Annotated[Literal["scan", "bfan", "vsrn", "a3vse", "mmca"], "matcher of regions and words"] = "scan"
    epochs: EpochsWithWarmup = 15
    warmup_epochs: WarmupEpochs = 1
    loss: LossKind = "infonce"
    margin: Margin = 0.2
    top_k: TopK = 1
    temperature: Temperature = 0.07
    lr: LearningRate = 5e-4
    dim: Dim = 512
    ema_decay: EMADecay = 0.998
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(
        default_factory=lambda: TextSettings(
            word_dim=300, hidden=512, bidirectional=True, dropout=0.2, word_dropout=None, pooling="mean"
        )
    )
    optim: Optimisation = field(default_factory=Optimisation)


def plan_fragments(settings: FragmentsRecipe, collection: Collection, context: RunContext) -> Plan:
    """Return inputs, matcher and stages."""
    image, text = settings.image, settings.text
    check_fragments(settings.matcher, image, text, settings)
    train = collection.sentences("train").join_equal_texts()
    towers = fragment_towers(image, text, train, context, settings.dim)
    matcher = fragment_matcher(settings.matcher, settings, towers)
    batches = pair_batches(settings, train, towers.inputs, context)
    settings.check_candidates(matcher)
    loss = PairLoss(
        settings.loss, settings.margin, settings.top_k, settings.warmup_epochs, settings.temperature,
        candidates=settings,
    )  # fmt: skip
    extra, optim = extra_objectives(settings.matcher, settings, towers), settings.optim
    stages = plan_pair_stages(loss, settings.epochs, batches, optim, settings.lr, optim.frozen, extra)
    return Plan(matcher, towers.inputs, stages, settings.loop(), dev_depth=settings.dev_candidates(matcher))


@dataclass(frozen=True)
class PretrainedImageSettings:
    """Settings of images for a dual encoder, which has an input size and a normalization of its own."""

    fit: Annotated[
        Literal["own", "squash", "crop"],
        "way to make an image square: that of the model (own), distort it (squash), or keep its middle (crop)",
    ] = "own"
    views: Annotated[
        Literal["one", "flip", "ten"],
        "views of an image that are averaged at test: the image, also its mirror image (flip), or ten crops (ten)",
    ] = "one"
    crop: Annotated[float, "smallest share of an image's area that a random training crop keeps"] = 0.7
    flip: Annotated[bool, "mirror half of the training images; harmful where captions say left and right"] = False
    jitter: Annotated[float, "largest random change of brightness, contrast and saturation in training"] = 0.0


@dataclass(frozen=True)
class PretrainedRecipe(PairedSettings):
    """Settings of ``pretrained``."""

    model: Annotated[str, "folder or hub name of a dual encoder, such as openai/clip-vit-base-patch32"] = ""
    epochs: Annotated[int, "number of epochs; 0 for the model without fine-tuning"] = 5
    warmup_epochs: WarmupEpochs = 0
    loss: LossKind = "infonce"
    margin: Margin = 0.2
    top_k: TopK = 1
    temperature: Annotated[
        float | None, "initial temperature of InfoNCE, which is trained; none for that of the model"
    ] = None
    lr: Annotated[
        float,
        "learning rate; parts have factors with optim.lr_scale=model.vision_model:0.1, or are frozen with "
        "optim.frozen=model.vision_model",
    ] = 1e-5
    max_pieces: Annotated[
        int, "largest number of word pieces of a caption; further ones are cut off; the model may have a lower limit"
    ] = 77
    word_dropout: Annotated[float, "share of words that are masked in training"] = 0.0
    image: PretrainedImageSettings = field(default_factory=PretrainedImageSettings)
    optim: Optimisation = field(default_factory=lambda: Optimisation(warmup=0.05))

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise UserError(f"epochs must be at least 0, got {self.epochs}")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k must be at least 1 or none, got {self.top_k}")


def plan_pretrained(settings: PretrainedRecipe, collection: Collection, context: RunContext) -> Plan:
    """Return inputs, matcher and stages; without stages where the model is not fine-tuned."""
    if not settings.model:
        raise UserError("recipe pretrained needs a model: give --set model= with a folder or a hub name")
    from calligram.models.pretrained import load_dual_encoder

    matcher, inputs, own_temperature = load_dual_encoder(
        settings.model, fit=settings.image.fit, views=settings.image.views, max_pieces=settings.max_pieces
    )
    loop = settings.loop()
    if not settings.epochs:
        return Plan(matcher, inputs, (), loop)
    temperature = max(MIN_TEMPERATURE, own_temperature) if settings.temperature is None else settings.temperature
    loss = PairLoss(settings.loss, settings.margin, settings.top_k, settings.warmup_epochs, temperature)
    train = collection.sentences("train").join_equal_texts()
    batches = Batches(
        train,
        inputs,
        settings.sampler(train.matches),
        augment=Augment(settings.image.crop, settings.image.flip, settings.image.jitter),
        word_dropout=settings.word_dropout,
        device=context.device,
        processes=context.processes,
        ignore_also_true=settings.ignore_also_true,
        track=context.track,
    )
    stages = plan_pair_stages(loss, settings.epochs, batches, settings.optim, settings.lr, settings.optim.frozen)
    return Plan(matcher, inputs, stages, loop)
