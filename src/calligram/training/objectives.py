"""What training minimises: named terms over a batch. Weights used only in training live here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calligram.losses.contrastive import symmetric_info_nce
from calligram.losses.ranking import bidirectional
from calligram.models.matcher import Encoded, Matcher, unit
from calligram.training.batch import Batch
from calligram.training.distributed import gather


@dataclass
class Spread:
    """How far apart the vectors of a batch lie: 1 minus the squared length of their mean. Zero is a collapse."""

    images: Tensor
    texts: Tensor

    @classmethod
    def of(cls, images: Encoded, texts: Encoded) -> Spread:
        """Measure detached vectors."""
        one, two = (1 - unit(e.vectors.detach()).mean(0).square().sum() for e in (images, texts))
        return cls(one, two)


class Objective(nn.Module):
    """A loss as named terms; their sum is minimised."""

    spread: Spread | None = None
    """of the last batch, for the collapse detector"""

    def forward(self, matcher: Matcher, batch: Batch) -> dict[str, Tensor]:
        """Terms of one batch."""
        raise NotImplementedError

    def encode(self, matcher: Matcher, batch: Batch) -> tuple[Encoded, Encoded]:
        """Both sides of the whole batch, gathered from all processes."""
        images = gather(matcher.encode_images(batch.images))
        texts = gather(matcher.encode_texts(batch.texts, batch.text_mask))
        self.spread = Spread.of(images, texts)
        return images, texts


class RankingObjective(Objective):
    """Bidirectional triplet hinge, by default over all negatives (vse++'s sum), with ``top_k=1`` the hardest.

    Departs from the papers' sum: divided by the number of positive pairs, so that the learning rate does not depend on
    the batch size.
    """

    def __init__(self, margin: float = 0.2, top_k: int | None = None) -> None:
        super().__init__()
        self.margin, self.top_k = margin, top_k

    def forward(self, matcher: Matcher, batch: Batch) -> dict[str, Tensor]:
        """One term."""
        scores = matcher.score(*self.encode(matcher, batch))
        loss = bidirectional(scores, batch.image_target, batch.text_target, margin=self.margin, top_k=self.top_k)
        return {"ranking": loss / (batch.image_target > 0).sum().clamp(min=1)}


class InfoNCEObjective(Objective):
    """Symmetric InfoNCE with a learnt temperature, kept in 0.01 .. 1."""

    def __init__(self, temperature: float = 0.07, learn: bool = True) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learn)

    @property
    def temperature(self) -> Tensor:
        """What scores are divided by."""
        return self.log_scale.clamp(0.0, math.log(100)).neg().exp()

    def forward(self, matcher: Matcher, batch: Batch) -> dict[str, Tensor]:
        """One term."""
        scores = matcher.score(*self.encode(matcher, batch))
        loss = symmetric_info_nce(scores, batch.image_target, batch.text_target, temperature=self.temperature)
        return {"info_nce": loss}
