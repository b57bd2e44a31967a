"""Captions and pictures that runs have seen: leaks by runs that a run learns from, and images that a run suggests."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.data.collection import MANIFEST, Collection
from calligram.data.sparse import (
    EXTRA_IMAGES_KEY,
    SPARSE_SPLIT,
    Sparsity,
    kept_matches,
    sparse_view,
    with_extra_captions,
)
from calligram.errors import UserError
from calligram.models.catalog import RUN_FILE, check_run_folder, load_matcher, read_run_file, run_fingerprint

Ints = NDArray[np.int64]

SUGGESTED = "suggested by runs"
"""part of the name of a collection with captions of suggested images"""

log = logging.getLogger(__name__)


def teacher_fingerprints(teachers: Mapping[str, str]) -> dict[str, str]:
    """Return the fingerprint of each teacher that is a run, by setting: the weights in a folder may change."""
    found = {}
    for setting, name in teachers.items():
        folder = Path(name).expanduser()
        if (folder / RUN_FILE).is_file():
            check_run_folder(folder)
            found[setting] = run_fingerprint(folder)
    return found


def refuse_leaks(teachers: Mapping[str, str], whole: Collection, sparse: Collection) -> None:
    """Refuse teachers that were trained on captions which the sparse collection leaves out.

    A teacher that was trained on other content is reported, with the pictures of dev and test that it has seen. A
    teacher that is not a run folder, such as a pretrained model, is accepted.

    Args:
        sparse: part of ``whole``, or ``whole`` itself.
    """
    for setting, name in teachers.items():
        file = Path(name).expanduser() / RUN_FILE
        if not file.is_file():
            continue
        about = read_run_file(file.parent)
        seen = collection_of_run(about, whole)
        if seen is None:
            _warn_of_other_content(f"{setting}={name}", about, whole, is_sparse=sparse is not whole)
        elif sparse is not whole and (lost := len(_matching_ids(seen) - _matching_ids(sparse))):
            raise UserError(
                f"{setting}={name} was trained on {seen.name}, with {lost} captions that {sparse.name} leaves out: "
                "it would leak them; give a run on no more captions, with the same sparse.seed"
            )


def _warn_of_other_content(teacher: str, about: Mapping[str, Any], whole: Collection, *, is_sparse: bool) -> None:
    """Report a teacher that was trained on another collection, or on this one with other splits or captions.

    Pictures are the same if they have the same id and number of bytes.
    """
    if is_sparse:
        log.warning(
            "%s was not trained on the present content of %s: it may have seen captions that the sparse settings "
            "remove here",
            teacher, whole.folder,
        )  # fmt: skip
    folder = Path(str(about.get("collection folder", "")))
    if not folder.is_absolute() or not (folder / MANIFEST).is_file():
        return
    with contextlib.suppress(UserError):  # another collection that is damaged does not stop this run
        both = _pictures(Collection.open(folder), ("train",)) & _pictures(whole, ("dev", "test"))
        if both:
            log.warning(
                "%s was trained in %s on %d pictures that are in dev or test here: recalls will be too high",
                teacher, folder, len(both),
            )  # fmt: skip


def _pictures(collection: Collection, splits: Sequence[str]) -> set[tuple[object, object]]:
    """Return ids and bytes of the pictures of some splits."""
    columns = (collection.column("images", name) for name in ("id", "bytes", "split"))
    return {(number, size) for number, size, split in zip(*columns, strict=True) if split in splits}


def collection_of_run(about: Mapping[str, Any], whole: Collection) -> Collection | None:
    """Return the part of a collection that a run was trained on; None where the collection has other content now.

    Args:
        about: content of the run's ``run.json``.
    """
    had = sparsity_of(about)
    places = {name: row for row, name in enumerate(whole.column("images", "id"))}
    further = about.get(EXTRA_IMAGES_KEY, [])
    if any(name not in places for name in further):
        return None
    rows = np.array([places[name] for name in further], dtype=np.int64)
    seen = with_extra_captions(whole, rows, had, SUGGESTED) if further else sparse_view(whole, had)
    return seen if about.get("content") == seen.fingerprint else None


def _matching_ids(collection: Collection) -> set[tuple[str, str]]:
    """Return the ids of all matching images and captions."""
    images, captions = collection.column("images", "id"), collection.column("captions", "id")
    rows = zip(collection.numbers("matches", "image"), collection.numbers("matches", "caption"), strict=True)
    return {(str(images[image]), str(captions[caption])) for image, caption in rows}


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
