"""Illustrated scenes as a collection: pictures, captions, boxes, identities, and every true pair."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from calligram.data.collection import MANIFEST, Collection
from calligram.data.scenes.casting import cast_of, cut, identities_for
from calligram.data.scenes.drafting import draft_of
from calligram.data.scenes.making import Kind, Order, make_all
from calligram.data.writing import write_collection
from calligram.errors import UserError, unknown
from calligram.progress import Track, silent

_ALONE = 400
"""so many images are made before a second process has started"""


def generate_scenes(
    folder: Path,
    *,
    images: int = 2000,
    seed: int = 0,
    size: int = 128,
    kind: Kind = "scenes",
    captions: int | None = None,
    splits: tuple[float, float, float] = (0.8, 0.1, 0.1),
    overwrite: bool = False,
    track: Track = silent,
    tell: Callable[[str], None] = lambda line: None,
    workers: int | None = None,
) -> Collection:
    """Draw scenes and store them as a collection.

    Image i of a seed is the same however many images, pixels or processes there are; only its split depends on
    ``images``.

    Args:
        size: height of the pictures in pixels; scenes are square, people 5:8.
        kind: ``scenes``, with several things in each; or ``people``, one large person in each, for person search.
        captions: for each image; 5 for scenes and 2 for people when None.
        splits: shares of train, dev and test.
        tell: is given lines on what was added to a collection that is replaced, and where it is kept.
        workers: number of processes; as many as there are cores when None.

    Raises:
        UserError: when an argument is out of range or the destination is taken.
    """
    folder = Path(folder)
    captions = captions if captions is not None else (2 if kind == "people" else 5)
    _check(folder, images, size, kind, captions, splits, overwrite)
    workers = workers if workers is not None else (1 if images < _ALONE else os.cpu_count() or 1)
    if workers < 1:
        raise UserError(f"workers must be at least 1, got {workers}")
    cast = cast_of(kind, seed, images)
    orders = [Order(kind, seed, i, identities_for(kind, i, cast), size, captions) for i in range(images)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the destination, so that the collection gets its tars by hard link.
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.scenes-", dir=folder.parent))
    try:
        made = track(make_all(orders, workers), "drawing scenes", images)
        draft = draft_of(made, scratch, orders, cut(kind, images, splits))
        draft.about["captions"] = captions
        return write_collection(draft, folder, overwrite=overwrite, track=track, tell=tell)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check(
    folder: Path, images: int, size: int, kind: str, captions: int, splits: tuple[float, float, float], overwrite: bool
) -> None:
    """Refuse what cannot be made before any time is spent on it."""
    if kind not in ("scenes", "people"):
        raise unknown("kind of scenes", kind, ["scenes", "people"])
    if images < 1:
        raise UserError(f"images must be at least 1, got {images}")
    if not 16 <= size <= 4096:
        raise UserError(f"size must lie in 16..4096 pixels, got {size}")
    if not 1 <= captions <= 20:
        raise UserError(f"captions must lie in 1..20, got {captions}")
    if len(splits) != 3 or min(splits) < 0 or abs(sum(splits) - 1) > 1e-6:
        raise UserError(f"splits must be three shares that add up to 1, got {splits}")
    if (folder / MANIFEST).is_file() and not overwrite:
        raise UserError(f"{folder} already holds a collection; choose another destination or give --overwrite")
