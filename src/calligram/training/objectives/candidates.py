"""Training for retrieve-and-rerank search: a loss of the vectors, and a loss of the matcher's scores of candidates
only.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from calligram.models.matcher import EmbeddingMatcher, Encoded, Matcher, cosines
from calligram.training.batches.batch import Batch
from calligram.training.objectives.objective import Objective


class RetrieveRerankObjective(Objective):
    """A loss of a matcher's scores and, with a weight, the same loss of the cosines of its vectors.

    For matchers whose score differs from that cosine. In a search the vectors retrieve what the scores rerank, so both
    are trained. If scoring all pairs of a batch costs too much, only candidate pairs are scored: all matching pairs,
    for each image the ``candidates`` negative texts with the highest cosine, and for each text the ``candidates``
    negative images with the highest cosine. All other pairs are ignored in the loss of the scores. With as many
    candidates as items, this is the loss of all pairs.

    Each of the two losses has its own parameters, such as the temperature of InfoNCE, because cosines and scores have
    different ranges.
    """

    def __init__(self, objective: Objective, candidates: int = 0, first_stage: float | None = None) -> None:
        """Args:
        objective: objective over pairs; it may use ``score`` and the targets of a batch only.
        candidates: number of candidates per item; 0 scores all pairs.
        first_stage: weight of the loss of the vectors; None for 1 with candidates and 0 without.
        """
        super().__init__()
        self.candidates = candidates
        self.weight = float(candidates > 0) if first_stage is None else first_stage
        self.second = objective
        self.first = deepcopy(objective) if self.weight else None

    @property
    def graph_safe(self) -> bool:
        """Without candidates: their number differs from batch to batch."""
        return not self.candidates and self.second.graph_safe

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Terms of the objective, and of the vectors with the prefix ``first_``."""
        found = {}
        if self.first is not None:
            own = self.first.terms(EmbeddingMatcher(), batch, images, texts)
            found = {f"first_{name}": self.weight * term for name, term in own.items()}
        if self.candidates:
            near = candidate_mask(images.vectors, texts.vectors, batch.image_target, batch.text_target, self.candidates)
            matcher = _CandidateScorer(matcher, near)
            batch = replace(batch, image_target=batch.image_target * near, text_target=batch.text_target * near.T)
        found |= self.second.terms(matcher, batch, images, texts)
        self.measures = self.second.measures
        return found


@torch.no_grad()
def candidate_mask(images: Tensor, texts: Tensor, image_target: Tensor, text_target: Tensor, count: int) -> Tensor:
    """(I, T) whether a pair matches, or is among the ``count`` hardest negatives of its image or of its text.

    Args:
        images: (I, D) vectors, compared by cosine with ``texts``, (T, D).
        image_target: (I, T), +1 match, -1 negative, 0 ignored, with images as anchors; ``text_target``, (T, I), with
            texts as anchors.
    """
    found = cosines(images, texts)
    by_image = _hardest_negatives(found, image_target, count)
    by_text = _hardest_negatives(found.T, text_target, count).T
    return by_image | by_text | (image_target > 0) | (text_target > 0).T


def _hardest_negatives(scores: Tensor, target: Tensor, count: int) -> Tensor:
    """(A, C) whether an entry is among the ``count`` negatives of its row with the highest score."""
    best = scores.masked_fill(target >= 0, -torch.inf).topk(min(count, scores.shape[1]), dim=1).indices
    return torch.zeros_like(target, dtype=torch.bool).scatter(1, best, True) & (target < 0)


class _CandidateScorer(Matcher):
    """A matcher that scores candidate pairs only; all others get zero and must not be used."""

    def __init__(self, matcher: Matcher, near: Tensor) -> None:
        super().__init__()
        self.matcher, self.near = matcher, near

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score all pairs of the first items of the batch, or of all items."""
        near = self.near[: len(images.vectors), : len(texts.vectors)]
        rows, columns = near.nonzero(as_tuple=True)
        found = self.matcher.score_some(images, texts, rows, columns)
        return found.new_zeros(near.shape).index_put((rows, columns), found)

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score any aligned pairs."""
        return self.matcher.score_pairs(images, texts)
