"""Losses over pairs with offline hard negatives from ``OfflineSampler``."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calligram.losses.quintuplet import PairScores, adaptive_quintuplet, offline_quintuplet, offline_triplet
from calligram.models.matcher import Encoded, Matcher
from calligram.training.batches.batch import Batch
from calligram.training.objectives.objective import Objective

ROUNDING_ERROR = 1e-5
"""difference of two scores of the same pair: a drawn negative can be the hardest one of the batch"""
OfflineLoss = Literal["offline-triplet", "offline-quintuplet", "adaptive"]


@dataclass(frozen=True)
class OfflineTerms:
    """Which loss, and its variants in Table 3 and the supplement of aoq."""

    kind: OfflineLoss = "adaptive"
    margin: float = 0.2
    """gamma_1, margin of online negatives"""
    offline_margin: float = 0.0
    """gamma_2, margin of offline negatives"""
    alpha: float = 0.3
    beta: float = 1.5
    online: bool = True
    """False is "OnlyOffline": Eq. 4 without its online term"""
    derive: Literal["offline", "online"] = "offline"
    """``online`` is "OnlineQuin": the derived pairs, which do not contain i or t, come from online negatives"""
    against: Literal["offline", "positive"] = "offline"
    """``positive`` is "w/o OfflineAdap": adaptive weights without offline negatives"""
    squared: bool = False
    """the squared hinge of Sec. 3.3"""

    @property
    def derived(self) -> bool:
        """Whether an image of t_off and a text of i_off are needed."""
        return self.kind != "offline-triplet" and self.derive == "offline"

    def __post_init__(self) -> None:
        if not self.online and self.kind != "offline-quintuplet":
            raise ValueError("online=False is accepted with kind=offline-quintuplet only")


class OfflineObjective(Objective):
    """The offline triplet, offline quintuplet or adaptive loss (aoq, Eqs. 3-5) over the pairs of a batch.

    Online negatives are the hardest among the items of matching pairs; drawn offline negatives are not among them.
    Besides all pairs of these items, only the pairs that a term needs are scored.

    Departs from the paper's sum: divided by the number of pairs, as ``RankingObjective`` is.
    """

    def __init__(self, terms: OfflineTerms = OfflineTerms()) -> None:  # noqa: B008  frozen
        super().__init__()
        self.options = terms

    @property
    def graph_safe(self) -> bool:
        """On a GPU, the numbers of items are rounded up to few different ones."""
        return True

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return the online, offline and derived terms of the loss."""
        # A product of vectors is cheap, and offline margins of 0 need more than eight bits.
        full = (
            contextlib.nullcontext()
            if matcher.scoring.reranks
            else torch.autocast(batch.drawn.device.type, enabled=False)
        )
        with full:
            scores = self.scores(matcher, batch, images, texts)
        # How useful the lists are: in the paper's regime 88 to 97% of the draws are harder than the batch.
        drawn = torch.isfinite(scores.offline)
        harder = (scores.offline > scores.online + ROUNDING_ERROR) & drawn
        self.measures = {"offline_harder": harder.sum() / drawn.sum().clamp(min=1)}
        return {name: term / max(1, len(batch.drawn)) for name, term in self._loss(scores).items()}

    def _loss(self, scores: PairScores) -> dict[str, Tensor]:
        options = self.options
        margins = options.margin, options.offline_margin
        if options.kind == "offline-triplet":
            return offline_triplet(scores, margins, squared=options.squared)
        if options.kind == "offline-quintuplet":
            return offline_quintuplet(scores, margins, online=options.online, squared=options.squared)
        return adaptive_quintuplet(
            scores, margins, alpha=options.alpha, beta=options.beta, against=options.against, squared=options.squared
        )

    def scores(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> PairScores:
        """Scores for the losses of ``losses.quintuplet``, from a batch of drawn rows, (N, 6) or (N, 4)."""
        derives = self.options.derived
        if batch.drawn.shape[1] < (6 if derives else 4):
            raise ValueError("this objective needs batches with offline negatives; use an OfflineSampler")
        height, width = batch.paired_counts or batch.image_target.shape
        target = batch.image_target[:height, :width]
        image, text, image_off, text_off, *others = batch.drawn.unbind(1)
        grid = matcher.score(images.rows(slice(0, height)), texts.rows(slice(0, width)))
        online = hardest_negatives(grid, target, batch.text_target[:width, :height], image, text)
        wanted = [(image, text_off), (image_off, text)]
        if derives:
            wanted += [(image_off, text_off), (others[0], others[1])]
        columns = _score_columns(matcher, images, texts, wanted)
        offline, derived = columns[:, :2], columns[:, 2:]
        if self.options.derive == "online":
            derived = derived_online(grid, target, *online.rows)
        return PairScores(grid[image, text], online.scores, offline, derived)


@dataclass(frozen=True)
class HardestNegatives:
    """Online hard negatives of N pairs."""

    scores: Tensor
    """(N, 2) S(i, t_on) and S(i_on, t); minus infinity for none"""
    rows: tuple[Tensor, Tensor]
    """(N,) each: i_on and t_on"""


def hardest_negatives(
    grid: Tensor, image_target: Tensor, text_target: Tensor, image: Tensor, text: Tensor
) -> HardestNegatives:
    """t_on = argmax S(i, c) over the texts of the batch that do not match i; i_on in the same way (aoq, Sec. 3.1)."""
    by_image = grid.masked_fill(image_target >= 0, -torch.inf).max(1)
    by_text = grid.T.masked_fill(text_target >= 0, -torch.inf).max(1)
    scores = torch.stack([by_image.values[image], by_text.values[text]], dim=1)
    return HardestNegatives(scores, (by_text.indices[text], by_image.indices[image]))


def derived_online(grid: Tensor, target: Tensor, image_on: Tensor, text_on: Tensor) -> Tensor:
    """S(i_on, t_on), and S of an image of t_on with a text of i_on: "OnlineQuin" (aoq, Table 3), (N, 2).

    A batch has nothing to draw again, so pairs that are not negatives count as missing.
    """
    matching = (target > 0).int()
    image_of, text_of = matching.argmax(0)[text_on], matching.argmax(1)[image_on]
    rows, columns = torch.stack([image_on, image_of], dim=1), torch.stack([text_on, text_of], dim=1)
    return grid[rows, columns].masked_fill(target[rows, columns] >= 0, -torch.inf)


def _score_columns(matcher: Matcher, images: Encoded, texts: Encoded, wanted: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Scores of aligned lists of pairs, one column each; minus infinity if an item of the pair is missing."""
    image, text = (torch.cat(side) for side in zip(*wanted, strict=True))
    found = matcher.score_pairs(images.rows(image.clamp(min=0)), texts.rows(text.clamp(min=0)))
    found = found.masked_fill((image < 0) | (text < 0), -torch.inf)
    return found.view(len(wanted), -1).T
