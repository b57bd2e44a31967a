"""Training with few captions: number of epochs (a3vse, Sec. 4.2), and captions that a run suggests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.data.collection import Collection
from calligram.data.sparse import (
    EXTRA_IMAGES_KEY,
    SPARSE_SPLIT,
    Sparsity,
    kept_matches,
    sparse_view,
    with_extra_captions,
)
from calligram.errors import UserError
from calligram.models.catalog import RUN_FILE, load_matcher, read_run_file
from calligram.training.stages import Stage

Ints = NDArray[np.int64]

EXTENDED_EPOCHS = ((0.1, 2.5), (0.2, 2.0), (0.5, 1.2), (1.0, 1.0))
"""share of annotations, and the paper's factor on the number of epochs"""
SUGGESTED = "suggested by runs"
"""part of the name of a collection with captions of suggested images"""


def extended(share: float) -> float:
    """Return the factor on the number of epochs at a share of annotations (a3vse, Sec. 4.2).

    The paper gives it at 10%, 20% and 50%. In between it is interpolated linearly over the logarithm of the share;
    below 10% it is 2.5.
    """
    shares, factors = zip(*EXTENDED_EPOCHS, strict=True)
    return float(np.interp(np.log(max(share, 1e-12)), np.log(shares), factors))


def half(share: float) -> float:
    """Return the factor, at least 1, that gives half of the steps of all annotations (a3vse, Sec. 4.2)."""
    return max(1.0, 0.5 / max(share, 1e-12))


def epochs_factor(settings: Any, whole: Collection, sparse: Collection) -> float:
    """Return the factor on the number of epochs of a run.

    Args:
        settings: of a recipe, with ``sparse.length`` and, for recipes with epochs of images, ``epoch_of``.
    """
    if settings.sparse.length == "as-set":
        return 1.0
    before, after = (_count(collection, "pairs") for collection in (whole, sparse))
    if settings.sparse.length == "extended":
        return extended(after / before)
    unit = getattr(settings, "epoch_of", "pairs")
    return half(_count(sparse, unit) / _count(whole, unit))


def with_more_epochs(stages: Sequence[Stage], factor: float) -> tuple[Stage, ...]:
    """Return stages with ``factor`` times the epochs."""
    return tuple(replace(stage, epochs=round(factor * stage.epochs)) for stage in stages)


def _count(collection: Collection, unit: str) -> int:
    """Count training pairs, or captioned training images."""
    images = collection.numbers("matches", "image")
    of_split = images[np.isin(images, collection.images_in("train"))]
    return len(of_split) if unit == "pairs" else len(np.unique(of_split))


def view_with_suggested_captions(
    collection: Collection, sparsity: Sparsity, run: str, *, more: float, uncertainty: float, device: str | torch.device
) -> Collection:
    """Return a sparse collection plus the captions of images that a run suggests, as ``calligram suggest`` does.

    This simulates active learning where all captions are known. A run that was itself trained with suggested images
    keeps those too, so that rounds follow each other: suggest, caption, train, suggest again. The run sees only the
    captions it was trained with.

    Args:
        more: share of the captioned training images that are added.

    Raises:
        UserError: when the run was trained on another collection, or on captions that are left out here.
    """
    from calligram.evaluation.suggest import suggest_images

    train = np.flatnonzero(np.array([s == SPARSE_SPLIT for s in collection.column("images", "split")], dtype=bool))
    captioned = np.intersect1d(train, collection.numbers("matches", "image"))
    count = round(more * len(captioned))
    if count < 1:
        raise UserError(f"sparse.more={more} of {len(captioned)} images is less than one image; give a larger share")
    before = _images_suggested_before(run, collection, sparsity)
    now = (
        with_extra_captions(collection, before, sparsity, SUGGESTED)
        if len(before)
        else sparse_view(collection, sparsity)
    )
    stored = load_matcher(run).to(device)
    # Images without any captions are suggested too, and there is nothing to add for them.
    uncaptioned = len(collection.unannotated(SPARSE_SPLIT))
    found = suggest_images(stored.matcher, stored.inputs, now, count + uncaptioned, uncertainty=uncertainty)
    rows = np.array([s.row for s in found.chosen if s.row in captioned][:count], dtype=np.int64)
    if len(rows) < count:
        raise UserError(
            f"sparse.run={run} suggests only {len(rows)} different images, and sparse.more={more} needs {count}; "
            "give a smaller share"
        )
    return with_extra_captions(collection, np.concatenate([before, rows]), sparsity, SUGGESTED)


def _images_suggested_before(run: str, collection: Collection, sparsity: Sparsity) -> Ints:
    """Return the rows of images that were suggested for the training of a run; none for a model without run.json."""
    file = Path(run).expanduser() / RUN_FILE
    if not file.is_file():
        return np.array([], dtype=np.int64)
    about = read_run_file(file.parent)
    places = {name: row for row, name in enumerate(collection.column("images", "id"))}
    missing = [name for name in about.get(EXTRA_IMAGES_KEY, []) if name not in places]
    if missing:
        raise _other_collection(run, collection, f"it used captions of image '{missing[0]}', which is not there")
    rows = np.array([places[name] for name in about.get(EXTRA_IMAGES_KEY, [])], dtype=np.int64)
    _refuse_removed_captions(run, about, collection, rows, sparsity)
    return rows


def _refuse_removed_captions(
    run: str, about: Mapping[str, Any], collection: Collection, rows: Ints, sparsity: Sparsity
) -> None:
    """Refuse a run that was trained on captions which are left out here: its choice would depend on them."""
    had = sparsity_of(about)
    seen = with_extra_captions(collection, rows, had, SUGGESTED) if len(rows) else sparse_view(collection, had)
    if about.get("content") != seen.fingerprint:
        raise _other_collection(run, collection, f"its content was {about.get('content')}, not {seen.fingerprint}")
    if (kept_matches(collection, had, rows) & ~kept_matches(collection, sparsity, rows)).any():
        raise UserError(
            f"sparse.run={run} was trained on {had}, with captions that {sparsity} leaves out: its suggestions would "
            "depend on captions that do not exist yet; give a run with the same seed on no more captions"
        )


def _other_collection(run: str, collection: Collection, why: str) -> UserError:
    return UserError(
        f"sparse.run={run} was not trained on {collection.folder} as it is now ({why}); give a run on this collection"
    )


def sparsity_of(about: Mapping[str, Any]) -> Sparsity:
    """Return the sparse settings of a run, from its ``run.json``."""
    settings = about.get("settings", {})
    kept = settings.get("sparse", {})
    seed = kept.get("seed", 0)
    return Sparsity(
        kept.get("images", 1.0), kept.get("captions"), int(settings.get("seed", 0) if seed is None else seed)
    )
