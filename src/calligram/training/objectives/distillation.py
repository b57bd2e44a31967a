"""Learning to score as another matcher does, from what it makes of the same training items."""

from __future__ import annotations

import torch
from torch import Tensor

from calligram.losses.contrastive import symmetric_kl_divergence
from calligram.models.layers.score_tiles import truncate_parts, used_lengths
from calligram.models.matcher import Encoded, Matcher
from calligram.training.batches.batch import Batch
from calligram.training.objectives.objective import InfoNCEObjective


class Teacher:
    """A matcher that is not trained, with all training items as it encodes them, in half precision.

    Items are encoded once, as its own inputs show them: without the changes that training makes to a student's.
    """

    def __init__(self, matcher: Matcher, images: Encoded, texts: Encoded) -> None:
        self.matcher = matcher.eval().requires_grad_(False)
        self.images, self.texts = (_to_half(side, parts=matcher.scores_parts) for side in (images, texts))

    @torch.no_grad()
    def scores(self, images: Tensor, texts: Tensor) -> Tensor:
        """Of all pairs of these items, (I, T), by their rows in the training pairing."""
        return self.matcher.score(_select_rows(self.images, images), _select_rows(self.texts, texts)).float()


class DistillationObjective(InfoNCEObjective):
    """The divergence of a batch's scores from a teacher's, with a learnt temperature for those that learn."""

    def __init__(self, teacher: Teacher, teacher_temperature: float = 0.05, temperature: float = 0.07) -> None:
        """Args:
        teacher_temperature: what the teacher's scores are divided by; the smaller, the more its first candidates count.
        temperature: of the scores that learn, at the start.
        """
        super().__init__(temperature)
        self.teacher_temperature = teacher_temperature
        self._teacher = [teacher]  # in a list: its weights are neither trained nor saved with this

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """One term."""
        wanted = self._teacher[0].scores(batch.image_rows, batch.text_rows)
        found = symmetric_kl_divergence(
            matcher.score(images, texts),
            wanted,
            temperature=self.temperature,
            teacher_temperature=self.teacher_temperature,
        )
        return {"divergence": found}


def _to_half(items: Encoded, *, parts: bool) -> Encoded:
    if not parts or items.parts is None:
        return Encoded(items.vectors.half())
    return Encoded(items.vectors.half(), items.parts.half(), items.mask)


def _select_rows(items: Encoded, rows: Tensor) -> Encoded:
    """Some of the items in single precision, with parts up to the last real one."""
    some = items.rows(rows)
    if some.mask is not None:
        some = truncate_parts(some, max(1, int(used_lengths(some.mask).max())))
    return Encoded(some.vectors.float(), None if some.parts is None else some.parts.float(), some.mask)
