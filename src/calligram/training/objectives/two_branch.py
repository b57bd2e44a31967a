"""Objectives of the two-branch networks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from calligram.losses.contrastive import logistic_loss
from calligram.losses.neighbourhood import NeighbourhoodScores, neighbourhood_ranking, neighbours
from calligram.models.matcher import EmbeddingMatcher, Encoded, Matcher
from calligram.training.batches.batch import Batch
from calligram.training.objectives.objective import Objective

CALIBRATION = (10.0, 0.0)
"""initial factor and bias of scores that are not log-odds"""
NeighbourhoodWeights = tuple[float, float, float, float]


class NeighbourhoodObjective(Objective):
    """Ranking in both directions and within each modality (two-branch, Eq. 6).

    Departs from the paper's sum: divided by the number of positive pairs, as ``RankingObjective`` is.
    """

    def __init__(
        self, weights: NeighbourhoodWeights = (1.0, 2.0, 0.0, 0.2), margin: float = 0.1, top_k: int | None = 50
    ) -> None:
        """Args:
        weights: lambda 1 to 4: image anchors, text anchors, image neighbourhoods, text neighbourhoods.
        """
        super().__init__()
        if not any(weights):
            raise ValueError("all four weights are zero, so there is nothing to minimise; give at least one weight")
        self.weights, self.margin, self.top_k = weights, margin, top_k

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return a term for every weight that is not zero."""
        image_weight, text_weight = self.weights[2:]
        terms = neighbourhood_ranking(
            matcher.score(images, texts),
            batch.image_target,
            batch.text_target,
            _modality(matcher, images, _image_neighbours(batch)) if image_weight else None,
            _modality(matcher, texts, _text_neighbours(batch)) if text_weight else None,
            weights=self.weights,
            margin=self.margin,
            top_k=self.top_k,
        )
        pairs = (batch.image_target > 0).sum().clamp(min=1)
        return {name: term / pairs for name, term in terms.items()}


def _image_neighbours(batch: Batch) -> Tensor:
    given = batch.image_neighbours
    return neighbours(batch.image_target, batch.image_groups) if given is None else given


def _text_neighbours(batch: Batch) -> Tensor:
    given = batch.text_neighbours
    return neighbours(batch.text_target, batch.text_groups) if given is None else given


def _modality(matcher: Matcher, items: Encoded, target: Tensor) -> NeighbourhoodScores:
    """Scores within one modality, of the anchors that ``target`` (A, N) has; they need only the vectors.

    A matcher that scores pairs by more than vectors cannot score two images, so the cosine of their vectors is used.
    """
    scorer = EmbeddingMatcher() if matcher.scoring.reranks else matcher
    return NeighbourhoodScores(scorer.score(items.rows(slice(len(target))), items), target)


class LogisticObjective(Objective):
    """Logistic regression over as many negative pairs as positive ones (two-branch, Eq. 7 and Sec. 3.3).

    Departs from the paper's sum: divided by the number of pairs.
    """

    def __init__(self, negatives: Literal["texts", "images"] = "texts", *, calibrate: bool = False) -> None:
        """Args:
        negatives: item that is replaced to make a negative pair: another text for the image as with sentences (Sec.
            5.1), or another image or region for the text as with phrases (Algorithm 1).
        calibrate: learn a factor on scores and a bias, for scores that are not log-odds such as cosines.
        """
        super().__init__()
        self.negatives = negatives
        self.calibration = nn.Parameter(torch.tensor(CALIBRATION)) if calibrate else None

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return one term."""
        if self.negatives == "texts":
            of_image, of_text, target = balanced_pairs(batch.image_target)
        else:
            of_text, of_image, target = balanced_pairs(batch.text_target)
        scores = matcher.score_pairs(images.rows(of_image), texts.rows(of_text))
        if self.calibration is not None:
            scores = self.calibration[0] * scores + self.calibration[1]
        return {"logistic": logistic_loss(scores, target) / max(1, len(target))}


def balanced_pairs(target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All positive pairs of ``target`` (A, C), then one random negative of the same row for each.

    Rows without negatives are left out, so that there are as many negatives as positives.

    Returns:
        Rows, columns, and +1 or -1.
    """
    rows, columns = ((target > 0) & (target < 0).any(1, keepdim=True)).nonzero(as_tuple=True)
    if not len(rows):
        return rows, columns, rows.new_zeros(0)
    others = (target[rows] < 0).float().multinomial(1).squeeze(1)
    kinds = torch.ones_like(rows)
    return torch.cat([rows, rows]), torch.cat([columns, others]), torch.cat([kinds, -kinds])
