"""Recipe ``vse``: a visual-semantic embedding from pixels, a backbone or stored features, by hinge or softmax loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.features.images.pixels import Augment
from calligram.features.inputs import Inputs
from calligram.models.layers.networks import HeadKind
from calligram.models.pretrained import load_dual_encoder
from calligram.recipes.parts.matchers import (
    FragmentModels,
    check_fragments,
    extra_objectives,
    fragment_matcher,
    fragment_sides,
)
from calligram.recipes.parts.pair_stages import (
    ClassifierSettings,
    PairLoss,
    classifier,
    group_classes,
    pair_batches,
    plan_pair_stages,
)
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import (
    Average,
    BatchSize,
    Dim,
    EpochOf,
    LearningRate,
    LossKind,
    Margin,
    Optimisation,
    PairedSettings,
    StagedSettings,
    TextsPerImage,
    TopK,
    Warmup,
)
from calligram.recipes.parts.towers import ImageSettings, TextSettings, Towers, check_sides
from calligram.training.batches.batch import Batches


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


def plan_vse(settings: VSERecipe, collection: Collection, around: RunContext) -> Plan:
    """Inputs, matcher and stages."""
    by_image = collection.sentences("train")
    train = by_image.join_equal_texts()
    image, text = settings.image, settings.text
    sides = Towers(image, text, train, around, dim=settings.dim, head=settings.head)
    matcher = sides.matcher()
    classes = group_classes(settings.classifier, by_image, sides, settings.seed) if settings.instance else None
    batches = pair_batches(settings, train, sides.inputs, around, classes=classes)
    loss = PairLoss(settings.loss, settings.margin, settings.top_k, settings.warmup_epochs, settings.temperature)
    weight, optim = settings.instance, settings.optim
    extra = ((weight, classifier(settings.classifier, sides, matcher, classes)),) if classes else ()
    stages = plan_pair_stages(loss, settings.epochs, batches, optim, settings.lr, optim.frozen, extra)
    return Plan(matcher, sides.inputs, stages, settings.loop())


# Recipe ``fragments``: regions or cells of a picture and words of its captions, by any matcher of parts.

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


def plan_fragments(settings: FragmentsRecipe, collection: Collection, around: RunContext) -> Plan:
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
    stages = plan_pair_stages(loss, settings.epochs, batches, optim, settings.lr, optim.frozen, extra)
    return Plan(matcher, sides.inputs, stages, settings.loop(), dev_depth=settings.measured(matcher))


# Recipe ``pretrained``: a dual encoder of ``transformers``, as it is or fine-tuned.


@dataclass(frozen=True)
class PictureSettings:
    """The image side; size and normalisation are the model's own."""

    fit: Annotated[
        Literal["own", "squash", "crop"], "the model's own way, all of the picture, or its middle square"
    ] = "own"
    views: Annotated[Literal["one", "flip", "ten"], "outside training: as it is, also mirrored, or ten crops"] = "one"
    crop: Annotated[float, "smallest share of a picture that a random training crop keeps"] = 0.7
    flip: Annotated[bool, "mirror half of the training pictures; harmful where captions say left and right"] = False
    jitter: Annotated[float, "largest random change of brightness, contrast and saturation"] = 0.0


@dataclass(frozen=True)
class PretrainedRecipe(PairedSettings):
    """Settings of ``pretrained``."""

    model: Annotated[str, "folder or hub name of a dual encoder, such as openai/clip-vit-base-patch32"] = ""
    epochs: Annotated[int, "passes over the training pairs; 0 takes the model as it is"] = 5
    warmup_epochs: Warmup = 0
    loss: LossKind = "infonce"
    margin: Margin = 0.2
    top_k: TopK = 1
    temperature: Annotated[float | None, "of InfoNCE at the start; none for the model's own"] = None
    lr: Annotated[
        float, "learning rate; by part with optim.parts=model.vision_model:0.1, or optim.frozen=model.vision_model"
    ] = 1e-5
    max_pieces: Annotated[int, "longer captions are cut; the model may have a lower limit"] = 77
    blank: Annotated[float, "share of words hidden in training"] = 0.0
    image: PictureSettings = field(default_factory=PictureSettings)
    optim: Optimisation = field(default_factory=lambda: Optimisation(warmup=0.05))

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise UserError(f"epochs must be at least 0, got {self.epochs}")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k must be at least 1 or none, got {self.top_k}")


def plan_pretrained(settings: PretrainedRecipe, collection: Collection, around: RunContext) -> Plan:
    """Inputs, matcher and stages; no stages when the model is taken as it is."""
    if not settings.model:
        raise UserError("recipe pretrained needs a model: give --set model= with a folder or a hub name")
    matcher, inputs, own_temperature = load_dual_encoder(
        settings.model, fit=settings.image.fit, views=settings.image.views, max_pieces=settings.max_pieces
    )
    loop = settings.loop()
    if not settings.epochs:
        return Plan(matcher, inputs, (), loop)
    # InfoNCE's temperature is kept above 0.01, where SigLIP's lies, and would not learn below.
    temperature = max(0.01, own_temperature) if settings.temperature is None else settings.temperature
    loss = PairLoss(settings.loss, settings.margin, settings.top_k, settings.warmup_epochs, temperature)
    batches = _batches(settings, collection, inputs, around)
    stages = plan_pair_stages(loss, settings.epochs, batches, settings.optim, settings.lr, settings.optim.frozen)
    return Plan(matcher, inputs, stages, loop)


def _batches(settings: PretrainedRecipe, collection: Collection, inputs: Inputs, around: RunContext) -> Batches:
    train = collection.sentences("train").join_equal_texts()
    return Batches(
        train,
        inputs,
        settings.sampler(train.matches),
        augment=Augment(settings.image.crop, settings.image.flip, settings.image.jitter),
        word_dropout=settings.blank,
        device=around.device,
        processes=around.processes,
        ignore_also_true=settings.ignore_also_true,
        track=around.track,
    )
