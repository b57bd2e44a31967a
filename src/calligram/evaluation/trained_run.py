"""A run folder for use from Python: its matcher, its inputs, and their evaluation."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from calligram.data.collection import Collection
from calligram.device import device_named
from calligram.errors import UserError
from calligram.evaluation.localization import Localization, evaluate_localization, load_phrases
from calligram.evaluation.retrieval import RetrievalReport, evaluate_retrieval
from calligram.features.inputs import Inputs
from calligram.models.catalog import check_run_folder, load_from_run, read_run_file
from calligram.models.matcher import Matcher
from calligram.progress import Track, silent


@dataclass(frozen=True)
class TrainedRun:
    """A run that has a matcher. It can be given wherever the folder of a run is expected."""

    folder: Path

    def __fspath__(self) -> str:
        return os.fspath(self.folder)

    @property
    def about(self) -> dict[str, Any]:
        """The content of ``run.json``: recipe, settings, collection and versions."""
        return read_run_file(self.folder)

    @cached_property
    def _loaded(self) -> tuple[Matcher, Inputs]:
        return load_from_run(self.folder)

    @property
    def matcher(self) -> Matcher:
        """The best matcher of the run, in evaluation mode."""
        return self._loaded[0]

    @property
    def inputs(self) -> Inputs:
        """Prepare images and texts for the matcher."""
        return self._loaded[1]

    def collection(self) -> Collection:
        """Open the collection that the run was trained on.

        Raises:
            UserError: when ``run.json`` does not name its folder, or the collection is no longer there.
        """
        folder = self.about.get("collection folder")
        if folder is None or not Path(folder).is_dir():
            raise UserError(
                f"{self.folder} does not know where its collection is (folder: {folder}); give it as collection="
            )
        return Collection.open(folder)

    def evaluate(
        self,
        split: str = "test",
        collection: Collection | str | os.PathLike[str] | None = None,
        *,
        identities: bool | None = None,
        device: torch.device | str = "auto",
        track: Track = silent,
        **options: Any,
    ) -> RetrievalReport | Localization:
        """Measure retrieval in both directions on a split; localization of phrases for a matcher of regions.

        Args:
            collection: a collection or its folder; by default the one that the run was trained on.
            identities: match descriptions with identities instead of images; by default if the split has identities.
            options: passed on to ``evaluate_retrieval``, such as ``folds=5``.
        """
        if collection is None:
            collection = self.collection()
        elif not isinstance(collection, Collection):
            collection = Collection.open(collection)
        place = device_named(device) if isinstance(device, str) else device
        matcher, inputs = self.matcher.to(place), self.inputs.to(place)
        if inputs.images.region_input is not None:
            loaded = load_phrases(inputs, collection, split, track=track, **options)
            return evaluate_localization(matcher, inputs, loaded, track)
        by_identity = collection.has_identities(split) if identities is None else identities
        pairing = collection.identities(split) if by_identity else collection.sentences(split)
        return evaluate_retrieval(matcher, inputs, pairing, track=track, **options)


def open_run(folder: str | os.PathLike[str]) -> TrainedRun:
    """Open a run folder that has a matcher.

    A matcher class from outside the package must have been imported before its run is loaded.

    Raises:
        UserError: when the folder is not a run, or has no checkpoint yet.
    """
    check_run_folder(Path(folder))
    return TrainedRun(Path(folder))
