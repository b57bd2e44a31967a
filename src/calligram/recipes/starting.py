"""What a run's image side saw before it was trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.data.pairing import Visuals
from calligram.features.backbone_input import BackboneInput
from calligram.features.backbones import Backbone, pixel_input
from calligram.features.inputs import Inputs

Floats = NDArray[np.float32]


def starting_features(settings: Mapping[str, Any], inputs: Inputs, visuals: Visuals) -> Floats | None:
    """Features (N, D) of the run's backbone as it came; None where it has none, or it is no longer there.

    Args:
        settings: as ``run.json`` has them; a trained backbone is loaded again from where it was.
    """
    side = inputs.images if isinstance(inputs.images, BackboneInput) else _backbone(settings)
    if side is None:
        return None
    pictures = [visuals.open(index) for index in range(len(visuals))]
    parts = [side.images(pictures[first : first + side.batch]) for first in range(0, len(pictures), side.batch)]
    found = torch.cat(parts).float()
    vectors: Floats = (found.mean(1) if found.ndim == 3 else found).numpy()
    return vectors


def _backbone(settings: Mapping[str, Any]) -> BackboneInput | None:
    image = settings.get("image")
    name = image.get("backbone", "") if isinstance(image, Mapping) else ""
    if not name or not Path(name).is_dir():
        return None
    return BackboneInput(Backbone.load(name), pixel_input(name), Path(name).name)
