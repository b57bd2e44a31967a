"""Offline negatives that a run mines with its own matcher, between two of its stages (aoq, Sec. 3.2)."""

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
from calligram.models.catalog import MATCHER_FILE, WEIGHTS_FILE, load_matcher
from calligram.models.matcher import EmbeddingMatcher, Matcher
from calligram.recipes.parts.run import RunContext
from calligram.training.batches.mined_negatives import OfflineSampler
from calligram.training.runs import Run

FIRST_ROUND = "first.safetensors"
"""file in a run folder: the best weights before mining"""
NEGATIVES = "negatives"
"""folder in a run folder: the mined negatives"""


@dataclass(frozen=True)
class MinedNegativesSettings:
    """Lists of mined negatives, and how negatives are drawn from them (aoq, Secs. 3.2 and 4.2, and its supplement)."""

    texts: Annotated[int, "number of hardest texts of an image that are drawn from, h", (1, 1000000)] = 300
    images: Annotated[int, "number of hardest images of a text that are drawn from", (1, 1000000)] = 60
    spread: Annotated[
        Literal["uniform", "normal"],
        "distribution of the drawn ranks: uniform, or normal around the middle of a list",
    ] = "uniform"


@dataclass(frozen=True)
class Miner:
    """Mines the hardest negatives of a training split."""

    settings: MinedNegativesSettings
    train: Pairing
    context: RunContext
    ignore_also_true: bool = False
    by_vectors: bool = False
    """rank by the cosine of vectors, for matchers whose scores take long to compute"""

    def mine(self, matcher: Matcher, inputs: Inputs) -> NegativeLists:
        """Return the hardest negatives by the scores of a matcher."""
        encoded = None
        if self.by_vectors:
            encoded = encode_pairing(
                matcher.eval(), inputs, load_pairing(inputs, self.train, self.context.track), self.context.track
            )
        return mine_pairing(
            EmbeddingMatcher() if self.by_vectors else matcher,
            inputs,
            self.train,
            encoded=encoded,
            texts=self.settings.texts,
            images=self.settings.images,
            ignore_also_true=self.ignore_also_true,
            track=self.context.track,
        )


class MinedNegatives:
    """Mines once at the start of a stage, with the best matcher so far, and gives the lists to a sampler."""

    def __init__(self, miner: Miner, sampler: OfflineSampler) -> None:
        self.miner, self.sampler = miner, sampler

    def begin(self, matcher: Matcher, run: Run, fresh: bool, weights: Mapping[str, Tensor] | None = None) -> bool:
        """Mine with the best matcher, then set the matcher's weights; return whether the weights were set.

        Args:
            fresh: False where a stopped run is resumed within the stage; nothing is mined or set then.
            weights: start of the stage; None for the best weights of the stage before.
        """
        if fresh:
            self._mine(run)
            if weights is None:
                weights = catalog.load(run.folder / MATCHER_FILE, run.folder / FIRST_ROUND).state_dict()
            matcher.load_state_dict(weights)
        self.use_lists(matcher, run, fresh)
        return fresh

    def _mine(self, run: Run) -> None:
        """Mine into the run folder, unless the lists are there; a killed process leaves complete lists or none."""
        context, kept = self.miner.context, run.folder / FIRST_ROUND
        if context.processes.first and not (run.folder / NEGATIVES).is_dir():
            with replace_file(kept) as partial:
                shutil.copyfile(run.folder / WEIGHTS_FILE, partial)
            teacher, inputs = run.load()
            with torch.no_grad():
                found = self.miner.mine(teacher.to(context.device), inputs)
            about = {key: run.about[key] for key in ("collection", "content")}
            replace(found, about={**about, "run": load_matcher(run.folder).fingerprint}).save(run.folder / NEGATIVES)
        context.processes.broadcast_number(0.0)  # the other processes wait here

    def use_lists(self, matcher: Matcher, run: Run, fresh: bool) -> bool:
        """Give the mined lists of the run folder to the sampler; the matcher does not change."""
        del matcher, fresh
        settings, train = self.miner.settings, self.miner.train
        self.sampler.set_negatives(
            NegativeLists.open(run.folder / NEGATIVES).aligned_to(train).truncated(settings.texts, settings.images)
        )
        return False
