"""Offline negatives that a run mines with its own matcher, between two of its stages (aoq, Sec. 3.2)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calligram.data.negatives import MINE_HINT, NegativeLists
from calligram.data.pairing import Pairing
from calligram.evaluation.mine import list_length, mine_pairing
from calligram.evaluation.recall import encode_pairing, load_pairing
from calligram.features.inputs import Inputs
from calligram.features.transformers_models import load_merged_weights
from calligram.files import replace_file
from calligram.models import catalog
from calligram.models.catalog import MATCHER_FILE, RUN_FILE, WEIGHTS_FILE, load_matcher
from calligram.models.matcher import EmbeddingMatcher, Matcher
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.run_settings import SparseSettings
from calligram.recipes.parts.terms import Offline
from calligram.training.batches.mined_negatives import OfflineSampler
from calligram.training.runs import Run

if TYPE_CHECKING:
    from calligram.recipes.pairs import PairsSettings

FIRST_ROUND = "first.safetensors"
"""file in a run folder: the best weights before mining"""
MINE_SPARSE_HINT = "give offline.negatives= a run folder without mined lists, which then mines here, or leave it out"
"""for sparse settings: ``calligram mine`` reads a collection on disk, which has all captions"""
NEGATIVES = "negatives"
"""folder in a run folder: the mined negatives"""


@dataclass(frozen=True)
class Miner:
    """Mines the hardest negatives of a training split."""

    texts: int
    """number of hardest texts of an image"""
    images: int
    """number of hardest images of a text"""
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
            texts=self.texts,
            images=self.images,
            ignore_also_true=self.ignore_also_true,
            track=self.context.track,
        )


class MinedNegatives:
    """Mines once at the start of a stage, with the best matcher so far, and gives the lists to a sampler.

    Args:
        number: 1 for the lists that the run mines first, 2 for those of a further round, ...
    """

    def __init__(self, miner: Miner, sampler: OfflineSampler, number: int = 1) -> None:
        self.miner, self.sampler = miner, sampler
        self.lists = NEGATIVES if number < 2 else f"{NEGATIVES}-{number}"
        self.weights = FIRST_ROUND if number < 2 else f"round-{number}.safetensors"

    @classmethod
    def of(cls, settings: PairsSettings, train: Pairing, context: RunContext, number: int = 1) -> MinedNegatives:
        """Return the lists of a run's term ``offline``; given lists are read, or mined by a given run, now."""
        offline: Offline = settings.term(Offline)
        lengths = (
            list_length(offline.texts, offline.share, len(train.texts)),
            list_length(offline.images, offline.share, len(train.visuals)),
        )
        miner = Miner(*lengths, train, context, settings.ignore_also_true, offline.by_vectors)
        excluded = train.matches
        if settings.ignore_also_true and train.also_true is not None:
            excluded = excluded.plus(train.also_true)
        sampler = OfflineSampler(
            train.matches, settings.batch, settings.seed, distribution=offline.spread, excluded=excluded,
            derived=offline.options.derived, texts=settings.texts, per_image=settings.epoch_of == "images",
        )  # fmt: skip
        if offline.negatives:
            sampler.set_negatives(_given_negatives(offline, miner, settings.sparse))
        return cls(miner, sampler, number)

    def begin(self, matcher: Matcher, run: Run, fresh: bool, weights: Mapping[str, Tensor] | None = None) -> bool:
        """Mine with the best matcher, then set the matcher's weights; return whether the weights were set.

        Args:
            fresh: False where a stopped run is resumed within the stage; nothing is mined or set then.
            weights: start of the stage; None for the best weights of the stage before.
        """
        if fresh:
            self._mine(run)
            if weights is None:
                best = catalog.load(run.folder / MATCHER_FILE, run.folder / self.weights).state_dict()
                load_merged_weights(matcher, best)
            else:
                matcher.load_state_dict(weights)
        self.use_lists(matcher, run, fresh)
        return fresh

    def _mine(self, run: Run) -> None:
        """Mine into the run folder, unless the lists are there; a killed process leaves complete lists or none."""
        context, kept = self.miner.context, run.folder / self.weights
        if context.processes.first and not (run.folder / self.lists).is_dir():
            with replace_file(kept) as partial:
                shutil.copyfile(run.folder / WEIGHTS_FILE, partial)
            teacher, inputs = run.load()
            with torch.no_grad():
                found = self.miner.mine(teacher.to(context.device), inputs)
            about = {key: run.about[key] for key in ("collection", "content")}
            replace(found, about={**about, "run": load_matcher(run.folder).fingerprint}).save(run.folder / self.lists)
        context.processes.broadcast_number(0.0)  # the other processes wait here

    def use_lists(self, matcher: Matcher, run: Run, fresh: bool) -> bool:
        """Give the mined lists of the run folder to the sampler; the matcher does not change."""
        del matcher, fresh
        miner = self.miner
        self.sampler.set_negatives(
            NegativeLists.open(run.folder / self.lists).aligned_to(miner.train).truncated(miner.texts, miner.images)
        )
        return False


def _given_negatives(offline: Offline, miner: Miner, sparse: SparseSettings) -> NegativeLists:
    """Return the negatives of a folder, or mine with a run that has no mined lists.

    Lists of a folder are used as long as they are, unless the settings give a length.
    """
    folder = Path(offline.negatives).expanduser()
    if (folder / RUN_FILE).is_file() and not (folder / NEGATIVES).is_dir():
        teacher = load_matcher(folder).to(miner.context.device)
        return miner.mine(teacher.matcher, teacher.inputs)
    mend = MINE_HINT if sparse == SparseSettings() else MINE_SPARSE_HINT
    lists = NegativeLists.open(folder / NEGATIVES if (folder / RUN_FILE).is_file() else folder)
    return lists.aligned_to(miner.train, mend).truncated(offline.texts, offline.images)
