"""Adapters (LoRA) of the towers of a run: their ranks from the settings of all stages, and the models that get them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from calligram.errors import UserError
from calligram.features.images.backbones import Backbone
from calligram.features.texts.text_encoder import TextEncoder
from calligram.features.transformers_models import add_adapters
from calligram.models.pretrained import Pretrained
from calligram.recipes.parts.tower_settings import ImageSettings, TextSettings


def adapter_ranks(trained: Sequence[tuple[ImageSettings, TextSettings]]) -> tuple[int, int]:
    """Return the ranks of the adapters of images and texts over all stages; 0 for none.

    Raises:
        UserError: when one stage trains adapters and another all weights, or ranks differ.
    """
    ranks = []
    for side in (0, 1):
        values = {each[side].train for each in trained if each[side].train}
        if len(values) > 1:
            name = ("image", "text")[side]
            raise UserError(f"{name}.train must be the same in all stages that train it: one rank of adapters, or true")
        ranks.append(next((int(value) for value in values if value is not True), 0))
    return ranks[0], ranks[1]


def add_stage_adapters(matcher: nn.Module, trained: Sequence[tuple[ImageSettings, TextSettings]]) -> None:
    """Add the adapters that the stages train to the transformers models of a matcher.

    Raises:
        UserError: when there is no such model, or stages contradict each other.
    """
    ranks = adapter_ranks(trained)
    found: tuple[list[nn.Module], list[nn.Module]] = [], []
    for module in list(matcher.modules()):
        if isinstance(module, Backbone | TextEncoder):
            found[isinstance(module, TextEncoder)].append(module.model)
        elif isinstance(module, Pretrained):
            found[0].append(module.model.vision_model)
            found[1].append(module.model.text_model)
    for side, name, rank, models in zip(("image", "text"), ("backbone", "encoder"), ranks, found, strict=True):
        if rank and not models:
            raise UserError(
                f"{side}.train={rank} needs a transformers model; give {side}.{name}=, or matcher=pretrained"
            )
        for model in models if rank else ():
            add_adapters(model, rank)
