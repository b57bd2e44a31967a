"""Runs that another run learns from: which they were, and whether they saw captions that it may not see."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.data.collection import Collection
from calligram.data.pairing import Visuals
from calligram.data.sparse import EXTRA_IMAGES_KEY, Sparsity, sparse_view, with_extra_captions
from calligram.errors import UserError
from calligram.features.images.backbones import Backbone, BackboneInput, pixel_input
from calligram.features.inputs import Inputs
from calligram.models.load import RUN_FILE, check_run_folder, read_run_file, run_fingerprint

log = logging.getLogger(__name__)


def fingerprints(teachers: Mapping[str, str]) -> dict[str, str]:
    """Of the runs among them, by setting; weights may change in a folder whose name stays."""
    found = {}
    for setting, name in teachers.items():
        folder = Path(name).expanduser()
        if (folder / RUN_FILE).is_file():
            check_run_folder(folder)
            found[setting] = run_fingerprint(folder)
    return found


def refuse_leaks(teachers: Mapping[str, str], whole: Collection, sparse: Collection) -> None:
    """Refuse runs that saw captions which a sparse collection has lost: through their scores they would be learnt from.

    A model that is no run of ours saw none of them, as far as anyone can tell.
    """
    if sparse is whole:
        return
    for setting, name in teachers.items():
        file = Path(name).expanduser() / RUN_FILE
        if not file.is_file():
            continue
        seen = seen_by(read_run_file(file.parent), whole)
        if seen is None:
            log.warning(
                "%s=%s was not trained on %s as it is now: whether it saw captions that sparse settings remove here "
                "cannot be told",
                setting, name, whole.folder,
            )  # fmt: skip
        elif lost := len(_pairs(seen) - _pairs(sparse)):
            raise UserError(
                f"{setting}={name} was trained on {seen.name}, with {lost} captions of images that are removed in "
                f"{sparse.name}: its scores would tell of them; give a run on no more captions, of the same sparse.seed"
            )


def seen_by(about: Mapping[str, Any], whole: Collection) -> Collection | None:
    """What a run saw of a collection, by its run.json; None where it was trained on another, or before it changed."""
    had = sparsity_of(about)
    places = {name: row for row, name in enumerate(whole.column("images", "id"))}
    further = about.get(EXTRA_IMAGES_KEY, [])
    if any(name not in places for name in further):
        return None
    rows = np.array([places[name] for name in further], dtype=np.int64)
    seen = with_extra_captions(whole, rows, had, "suggested by runs") if further else sparse_view(whole, had)
    return seen if about.get("content") == seen.fingerprint else None


def sparsity_of(about: Mapping[str, Any]) -> Sparsity:
    """How much of the captions a run's settings kept, by its run.json."""
    settings = about.get("settings", {})
    kept = settings.get("sparse", {})
    seed = kept.get("seed", 0)
    return Sparsity(
        kept.get("images", 1.0), kept.get("captions"), int(settings.get("seed", 0) if seed is None else seed)
    )


def _pairs(collection: Collection) -> set[tuple[str, str]]:
    """Ids of images with those of their captions."""
    images, captions = collection.column("images", "id"), collection.column("captions", "id")
    rows = zip(collection.numbers("matches", "image"), collection.numbers("matches", "caption"), strict=True)
    return {(str(images[image]), str(captions[caption])) for image, caption in rows}


# What a run's image side saw before it was trained.

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
