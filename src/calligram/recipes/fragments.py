"""Recipe ``fragments``: regions or cells of a picture and words of its captions, by scan, bfan or vsrn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from calligram.data.collection import Collection
from calligram.features.pixels import Augment
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
from calligram.recipes.stages import PairLoss, pair_stages
from calligram.training.batch import Batches
from calligram.training.loop import Loop, Precision
from calligram.training.samplers import PairSampler

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
class FragmentsRecipe(FragmentModels):
    """Settings of ``fragments``, among them those of each matcher (``scan.direction``, ``vsrn.layers``)."""

    presets: ClassVar[Mapping[str, tuple[str, ...]]] = PRESETS

    preset: Annotated[Literal["ours", "release"], "settings that others are laid over: ours, or scan's release's"] = (
        "ours"
    )
    matcher: Annotated[Literal["scan", "bfan", "vsrn"], "how regions and words are compared"] = "scan"
    seed: Annotated[int, "source of all randomness", (0, 4611686018427387904)] = 0
    epochs: Annotated[int, "passes over the training pairs, warm-up included", (1, 1000000)] = 15
    warmup_epochs: Annotated[int, "first epochs that use all negatives before top_k hardest ones", (0, 1000000)] = 1
    batch: Annotated[int, "images in a batch, over all processes", (2, 1000000)] = 128
    texts: Annotated[int, "captions that come with each image of a batch", (1, 1000)] = 1
    epoch_of: Annotated[Literal["pairs", "images"], "an epoch takes all pairs, or every image once"] = "pairs"
    loss: Annotated[Literal["ranking", "infonce"], "triplet hinge or symmetric InfoNCE"] = "infonce"
    margin: Annotated[float, "of the hinge", (0, 100)] = 0.2
    top_k: Annotated[int | None, "hardest negatives per anchor that count, or none for all", (1, 1000000)] = 1
    temperature: Annotated[float, "of InfoNCE at the start; it is learnt", (0.001, 100)] = 0.07
    ignore_also_true: Annotated[bool, "leave out negatives known to be true; scenes know them"] = False
    lr: Annotated[float, "learning rate", (0, 1000)] = 5e-4
    dim: Annotated[int, "size of the joint space", (1, 65536)] = 512
    precision: Annotated[Precision, "arithmetic of the network"] = "fp32"
    average: Annotated[float, "decay of the weight average that is evaluated and saved; 0 for none", (0, 0.999999)] = (
        0.998
    )
    save_steps: Annotated[
        int, "save the state every so many steps, besides after every epoch; 0 for not", (0, 1000000000)
    ] = 0
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(
        default_factory=lambda: TextSettings(
            word_dim=300, hidden=512, bidirectional=True, dropout=0.2, blank=0.1, pooling="mean"
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
    batches = Batches(
        train,
        sides.inputs,
        PairSampler(
            train.matches,
            settings.batch,
            settings.seed,
            texts=settings.texts,
            per_image=settings.epoch_of == "images",
        ),
        augment=Augment(image.crop, image.flip, image.jitter),
        blank=text.blank,
        device=around.device,
        processes=around.processes,
        ignore_also_true=settings.ignore_also_true,
        track=around.track,
    )
    loop = Loop(settings.seed, settings.precision, settings.average, save_steps=settings.save_steps)
    loss = PairLoss(settings.loss, settings.margin, settings.top_k, settings.warmup_epochs, settings.temperature)
    extra, optim = extra_objectives(settings.matcher, settings, sides), settings.optim
    stages = pair_stages(loss, settings.epochs, batches, optim, settings.lr, optim.frozen, extra)
    return Plan(matcher, sides.inputs, stages, loop)
