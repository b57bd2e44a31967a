"""Recipe ``pretrained``: a dual encoder of ``transformers``, as it is or fine-tuned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.features.inputs import Inputs
from calligram.features.pixels import Augment
from calligram.models.pretrained import load_dual_encoder
from calligram.recipes.optimisation import Optimisation
from calligram.recipes.plan import Plan, Surroundings
from calligram.recipes.run_settings import LossKind, Margin, PairedSettings, TopK, Warmup
from calligram.recipes.stages import PairLoss, pair_stages
from calligram.training.batch import Batches


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


def plan(settings: PretrainedRecipe, collection: Collection, around: Surroundings) -> Plan:
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
    stages = pair_stages(loss, settings.epochs, batches, settings.optim, settings.lr, settings.optim.frozen)
    return Plan(matcher, inputs, stages, loop)


def _batches(settings: PretrainedRecipe, collection: Collection, inputs: Inputs, around: Surroundings) -> Batches:
    train = collection.sentences("train").join_equal_texts()
    return Batches(
        train,
        inputs,
        settings.sampler(train.matches),
        augment=Augment(settings.image.crop, settings.image.flip, settings.image.jitter),
        blank=settings.blank,
        device=around.device,
        processes=around.processes,
        ignore_also_true=settings.ignore_also_true,
        track=around.track,
    )
