"""How long to train with few captions (a3vse, Sec. 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

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
from calligram.evaluation.suggest import suggest_images
from calligram.models.load import RUN_FILE, load_matcher, read_run_file
from calligram.recipes.parts.teachers import sparsity_of
from calligram.training.stages import Stage

Length = Literal["as-set", "extended", "half"]

EXTENDED = ((0.1, 2.5), (0.2, 2.0), (0.5, 1.2), (1.0, 1.0))
"""the paper's factors on the epochs, by the share of annotations that is left"""


def extended(share: float) -> float:
    """Factor on the epochs at a share of annotations (a3vse, Sec. 4.2).

    The paper gives it at 10%, 20% and 50%; between these it is read off straight lines over the logarithm of the share,
    and below 10% it stays 2.5.
    """
    shares, factors = zip(*EXTENDED, strict=True)
    return float(np.interp(np.log(max(share, 1e-12)), np.log(shares), factors))


def half(share: float) -> float:
    """Factor on the epochs for half of the steps that all annotations would take, at least 1 (a3vse, Sec. 4.2)."""
    return max(1.0, 0.5 / max(share, 1e-12))


def epochs_factor(settings: Any, whole: Collection, sparse: Collection) -> float:
    """By how much the epochs of a run grow.

    Args:
        settings: a recipe's, with ``sparse.length`` and, where an epoch may be one of images, ``epoch_of``.
    """
    if settings.sparse.length == "as-set":
        return 1.0
    before, after = (_amount(collection, "pairs") for collection in (whole, sparse))
    if settings.sparse.length == "extended":
        return extended(after / before)
    unit = getattr(settings, "epoch_of", "pairs")
    return half(_amount(sparse, unit) / _amount(whole, unit))


def lengthened(stages: Sequence[Stage], factor: float) -> tuple[Stage, ...]:
    """Stages with that many times the epochs, each at least as long as it was."""
    return tuple(replace(stage, epochs=round(factor * stage.epochs)) for stage in stages)


def _amount(collection: Collection, unit: str) -> int:
    """Training pairs, or captioned training images."""
    images = collection.numbers("matches", "image")
    of_split = images[np.isin(images, collection.images_in("train"))]
    return len(of_split) if unit == "pairs" else len(np.unique(of_split))


# Captions that a run would have asked for: how good its suggestions are, tried where all captions are known.

Ints = NDArray[np.int64]

HOW = "suggested by runs"


def suggested_view(
    collection: Collection, sparsity: Sparsity, run: str, *, more: float, uncertainty: float, device: str | torch.device
) -> Collection:
    """A sparse collection with the captions of further images, which a run chooses as ``calligram suggest`` does.

    Where the run was trained with suggestions itself, their captions are there too, so that runs can follow each other
    as people would: caption what is suggested, train, ask again. The run sees the captions it was trained with only.

    Args:
        more: share of the captioned training images that are added.

    Raises:
        UserError: when the run was trained on another collection, or on captions that are not kept here.
    """
    train = np.flatnonzero(np.array([s == SPARSE_SPLIT for s in collection.column("images", "split")], dtype=bool))
    captioned = np.intersect1d(train, collection.numbers("matches", "image"))
    count = round(more * len(captioned))
    if count < 1:
        raise UserError(f"sparse.more={more} of {len(captioned)} images is none; give a larger share")
    before = _suggested_to(run, collection, sparsity)
    now = with_extra_captions(collection, before, sparsity, HOW) if len(before) else sparse_view(collection, sparsity)
    stored = load_matcher(run).to(device)
    # Images that never had captions are proposed too, and here nobody writes them.
    bare = len(collection.unannotated(SPARSE_SPLIT))
    found = suggest_images(stored.matcher, stored.inputs, now, count + bare, uncertainty=uncertainty)
    rows = np.array([s.row for s in found.chosen if s.row in captioned][:count], dtype=np.int64)
    if len(rows) < count:
        raise UserError(f"{run} tells only {len(rows)} images apart, of {count} that sparse.more asks for")
    return with_extra_captions(collection, np.concatenate([before, rows]), sparsity, HOW)


def _suggested_to(run: str, collection: Collection, sparsity: Sparsity) -> Ints:
    """Rows of the images whose captions a run had by suggestion.

    A model that is no run of ours learnt from none of the captions, as far as anyone can tell.
    """
    file = Path(run).expanduser() / RUN_FILE
    if not file.is_file():
        return np.array([], dtype=np.int64)
    about = read_run_file(file.parent)
    places = {name: row for row, name in enumerate(collection.column("images", "id"))}
    missing = [name for name in about.get(EXTRA_IMAGES_KEY, []) if name not in places]
    if missing:
        raise _of_another(run, collection, f"it had captions of image '{missing[0]}', which is not there")
    rows = np.array([places[name] for name in about.get(EXTRA_IMAGES_KEY, [])], dtype=np.int64)
    _refuse_leaks(run, about, collection, rows, sparsity)
    return rows


def _refuse_leaks(run: str, about: Mapping[str, Any], collection: Collection, rows: Ints, sparsity: Sparsity) -> None:
    """A run that saw captions which are removed here would choose by what nobody has written yet."""
    had = sparsity_of(about)
    seen = with_extra_captions(collection, rows, had, HOW) if len(rows) else sparse_view(collection, had)
    if about.get("content") != seen.fingerprint:
        raise _of_another(run, collection, f"its content was {about.get('content')}, not {seen.fingerprint}")
    if (kept_matches(collection, had, rows) & ~kept_matches(collection, sparsity, rows)).any():
        raise UserError(
            f"sparse.run={run} was trained on {had}, of which some captions are not kept with {sparsity}: it would "
            "choose by captions that nobody has written yet; give a run of the same seed on no more captions"
        )


def _of_another(run: str, collection: Collection, why: str) -> UserError:
    return UserError(
        f"sparse.run={run} was not trained on {collection.folder} as it is now ({why}); give a run on this collection"
    )
