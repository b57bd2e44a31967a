"""Captions that a run would have asked for: how good its suggestions are, tried where all captions are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.data.collection import Collection
from calligram.data.sparse import FURTHER, SPLIT, Sparsity, sparse_view, with_captions_of
from calligram.errors import UserError
from calligram.evaluation.suggesting import suggest
from calligram.models.stored import RUN, load_matcher

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
    """
    train = np.flatnonzero(np.array([s == SPLIT for s in collection.column("images", "split")], dtype=bool))
    captioned = np.intersect1d(train, collection.numbers("matches", "image"))
    count = round(more * len(captioned))
    if count < 1:
        raise UserError(f"sparse.more={more} of {len(captioned)} images is none; give a larger share")
    before = _suggested_to(run, collection)
    now = with_captions_of(collection, before, sparsity, HOW) if len(before) else sparse_view(collection, sparsity)
    stored = load_matcher(run)
    # Images that never had captions are proposed too, and here nobody writes them.
    bare = len(collection.unannotated(SPLIT))
    found = suggest(stored.matcher.to(device), stored.inputs, now, count + bare, uncertainty=uncertainty)
    rows = np.array([s.row for s in found.chosen if s.row in captioned][:count], dtype=np.int64)
    if len(rows) < count:
        raise UserError(f"{run} tells only {len(rows)} images apart, of {count} that sparse.more asks for")
    return with_captions_of(collection, np.concatenate([before, rows]), sparsity, HOW)


def _suggested_to(run: str, collection: Collection) -> Ints:
    """Rows of the images whose captions a run had by suggestion."""
    file = Path(run) / RUN
    ids = json.loads(file.read_text(encoding="utf-8")).get(FURTHER, []) if file.is_file() else []
    places = {name: row for row, name in enumerate(collection.column("images", "id"))}
    return np.array([places[name] for name in ids], dtype=np.int64)
