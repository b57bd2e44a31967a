"""Teachers: trained runs that another run learns from. They must not have seen captions that the run may not see."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calligram.data.collection import Collection
from calligram.data.pairing import Pairing
from calligram.data.sparse import EXTRA_IMAGES_KEY, sparse_view, with_extra_captions
from calligram.errors import UserError
from calligram.evaluation.encode import encode_pairing, load_pairing
from calligram.models.catalog import RUN_FILE, check_run_folder, load_matcher, read_run_file, run_fingerprint
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.sparse import SUGGESTED, sparsity_of
from calligram.training.objectives.distillation import Teacher

log = logging.getLogger(__name__)


def load_teacher(run: str, train: Pairing, context: RunContext) -> Teacher:
    """Return the matcher of a run with the encodings of all training items, made from the run's own inputs."""
    stored = load_matcher(Path(run).expanduser()).to(context.device)
    matcher = stored.matcher
    loaded = load_pairing(stored.inputs, train, context.track)
    return Teacher(matcher, *encode_pairing(matcher, stored.inputs, loaded, context.track))


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

    A teacher that is not a run folder, such as a pretrained model, is accepted.
    """
    if sparse is whole:
        return
    for setting, name in teachers.items():
        file = Path(name).expanduser() / RUN_FILE
        if not file.is_file():
            continue
        seen = collection_of_run(read_run_file(file.parent), whole)
        if seen is None:
            log.warning(
                "%s=%s was not trained on the present content of %s: it may have seen captions that the sparse "
                "settings remove here",
                setting, name, whole.folder,
            )  # fmt: skip
        elif lost := len(_matching_ids(seen) - _matching_ids(sparse)):
            raise UserError(
                f"{setting}={name} was trained on {seen.name}, with {lost} captions that {sparse.name} leaves out: "
                "its scores would leak them; give a run on no more captions, with the same sparse.seed"
            )


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
