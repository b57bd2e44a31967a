"""Captions that a run would have asked for: how good its suggestions are, tried where all captions are known."""

from __future__ import annotations

import numpy as np
import torch

from calligram.data.collection import Collection
from calligram.data.sparse import SPLIT, Sparsity, sparse_view, with_captions_of
from calligram.errors import UserError
from calligram.evaluation.suggesting import suggest
from calligram.models.stored import load_matcher


def suggested_view(
    collection: Collection, sparsity: Sparsity, run: str, *, more: float, uncertainty: float, device: str | torch.device
) -> Collection:
    """A sparse collection with the captions of further images, which a run chooses as ``calligram suggest`` does.

    As many are chosen as a sparse collection of ``more`` more images has, so that levels are comparable with those
    chosen at random. The run sees the sparse collection only.
    """
    train = np.flatnonzero(np.array([s == SPLIT for s in collection.column("images", "split")], dtype=bool))
    captioned = np.intersect1d(train, collection.numbers("matches", "image"))
    count = round(min(1.0, sparsity.images + more) * len(captioned)) - round(sparsity.images * len(captioned))
    if count < 1:
        raise UserError(f"sparse.more={more} of {len(captioned)} images is none; give a larger share")
    stored, sparse = load_matcher(run), sparse_view(collection, sparsity)
    matcher = stored.matcher.to(device)
    # Images that never had captions are proposed too, and here nobody writes them.
    bare = len(collection.unannotated(SPLIT))
    found = suggest(matcher, stored.inputs, sparse, count + bare, uncertainty=uncertainty)
    rows = np.array([s.row for s in found.chosen if s.row in captioned][:count], dtype=np.int64)
    if len(rows) < count:
        raise UserError(f"{run} tells only {len(rows)} images apart, of {count} that sparse.more asks for")
    return with_captions_of(collection, rows, sparsity, f"suggested by a run, uncertainty {uncertainty:g}")
