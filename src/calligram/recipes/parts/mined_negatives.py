"""Offline negatives that a run mines for itself, between two of its stages (aoq, Sec. 3.2)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from calligram.data.negatives import NegativeLists
from calligram.data.pairing import Pairing
from calligram.evaluation.encode import encode_pairing, load_pairing
from calligram.evaluation.mine import mine_pairing
from calligram.features.inputs import Inputs
from calligram.files import replace_file
from calligram.models import catalog
from calligram.models.load import MATCHER_FILE, WEIGHTS_FILE, load_matcher
from calligram.models.matcher import EmbeddingMatcher, Matcher
from calligram.recipes.parts.run import RunContext
from calligram.training.batches.mined_negatives import OfflineSampler
from calligram.training.runs import Run

FIRST, NEGATIVES = "first.safetensors", "negatives"
"""in a run folder: the best weights before mining, and what they mined"""


@dataclass(frozen=True)
class MinedNegativesSettings:
    """Offline negatives, and how they are drawn (aoq, Secs. 3.2 and 4.2, and its supplement)."""

    texts: Annotated[int, "hardest texts of an image that are drawn from, h", (1, 1000000)] = 300
    images: Annotated[int, "hardest images of a text that are drawn from", (1, 1000000)] = 60
    spread: Annotated[
        Literal["uniform", "normal"], "ranks drawn alike, or about the middle of a list, away from its top"
    ] = "uniform"


@dataclass(frozen=True)
class Miner:
    """Finds the hardest negatives of a training split."""

    hard: MinedNegativesSettings
    train: Pairing
    around: RunContext
    ignore_also_true: bool = False
    by_vectors: bool = False
    """rank by the cosine of vectors, as a first search does, where scores would take long"""

    def mined(self, matcher: Matcher, inputs: Inputs) -> NegativeLists:
        """What a matcher finds."""
        encoded = None
        if self.by_vectors:
            encoded = encode_pairing(
                matcher.eval(), inputs, load_pairing(inputs, self.train, self.around.track), self.around.track
            )
        return mine_pairing(
            EmbeddingMatcher() if self.by_vectors else matcher,
            inputs,
            self.train,
            encoded=encoded,
            texts=self.hard.texts,
            images=self.hard.images,
            ignore_also_true=self.ignore_also_true,
            track=self.around.track,
        )


class MinedNegatives:
    """What a stage enters with: the best matcher so far mines once, and a sampler is handed the lists."""

    def __init__(self, miner: Miner, sampler: OfflineSampler) -> None:
        self.miner, self.sampler = miner, sampler

    def begin(self, matcher: Matcher, run: Run, fresh: bool, weights: Mapping[str, Tensor] | None = None) -> bool:
        """Keep the best matcher, mine with it, and begin from ``weights``, or go on from it where there are none."""
        if fresh:
            self._mine(run)
            if weights is None:
                weights = catalog.load(run.folder / MATCHER_FILE, run.folder / FIRST).state_dict()
            matcher.load_state_dict(weights)
        self.take(matcher, run, fresh)
        return fresh

    def _mine(self, run: Run) -> None:
        """Once; after a kill, what is there whole is not made again."""
        around, kept = self.miner.around, run.folder / FIRST
        if around.processes.first and not (run.folder / NEGATIVES).is_dir():
            with replace_file(kept) as partial:
                shutil.copyfile(run.folder / WEIGHTS_FILE, partial)
            teacher, inputs = run.load()
            with torch.no_grad():
                found = self.miner.mined(teacher.to(around.device), inputs)
            about = {key: run.about[key] for key in ("collection", "content")}
            replace(found, about={**about, "run": load_matcher(run.folder).fingerprint}).save(run.folder / NEGATIVES)
        around.processes.broadcast_number(0.0)  # the others wait here

    def take(self, matcher: Matcher, run: Run, fresh: bool) -> bool:
        """Draw from the lists that are there; the matcher stays as it is."""
        del matcher, fresh
        hard, train = self.miner.hard, self.miner.train
        self.sampler.set_negatives(
            NegativeLists.open(run.folder / NEGATIVES).aligned_to(train).truncated(hard.texts, hard.images)
        )
        return False
