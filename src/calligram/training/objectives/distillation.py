"""Distillation: train a student to reproduce the scores of a teacher on the same training items."""

from __future__ import annotations

import torch
from torch import Tensor

from calligram.losses.contrastive import symmetric_kl_divergence
from calligram.models.layers.score_tiles import truncate_parts, used_lengths
from calligram.models.matcher import Encoded, Matcher
from calligram.training.batches.batch import Batch
from calligram.training.objectives.objective import InfoNCEObjective


class Teacher:
    """A frozen matcher with its encodings of all training items, in half precision.

    Items are encoded once with the inputs of the teacher. If the student reads the same pixels, the teacher instead
    encodes the images of each batch as they are augmented for the student. Its scores then describe every crop, while
    those of whole training images are nearly the annotation.
    """

    def __init__(self, matcher: Matcher, images: Encoded | None, texts: Encoded) -> None:
        """Args:
        images: encodings of all images; None to encode the images of each batch.
        """
        self.matcher = matcher.eval().requires_grad_(False)
        parts = matcher.scoring.parts
        self.images = None if images is None else _to_half(images, parts=parts)
        self.texts = _to_half(texts, parts=parts)

    def __deepcopy__(self, memo: object) -> Teacher:
        """Return itself: it never changes, and its encodings are large."""
        return self

    @torch.no_grad()
    def scores(self, batch: Batch) -> Tensor:
        """Scores (I, T) of all pairs of a batch."""
        texts = _select_rows(self.texts, batch.text_rows)
        if self.images is not None:
            return self.matcher.score(_select_rows(self.images, batch.image_rows), texts).float()
        images = self.matcher.encode_images(batch.images)
        return self.matcher.score(_to_float(images if self.matcher.scoring.parts else Encoded(images.vectors)), texts)


class DistillationObjective(InfoNCEObjective):
    """Divergence of a batch's scores from a teacher's scores; the temperature of the student is learnt."""

    def __init__(self, teacher: Teacher, teacher_temperature: float = 0.05, temperature: float = 0.07) -> None:
        """Args:
        teacher_temperature: divisor of the teacher's scores; a smaller one gives more weight to its best candidates.
        temperature: initial divisor of the student's scores.
        """
        super().__init__(temperature)
        self.teacher_temperature = teacher_temperature
        self._teacher = [teacher]  # inside a list: its weights are neither trained nor saved here

    @property
    def graph_safe(self) -> bool:
        """If the teacher compares vectors: the lengths of its texts would have to be read."""
        return all(side is None or side.mask is None for side in (self._teacher[0].images, self._teacher[0].texts))

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return one term."""
        repeats = batch.drawn.shape[1] > 2  # see ``Batches``: only batches with drawn items repeat some
        found = symmetric_kl_divergence(
            matcher.score(images, texts),
            self._teacher[0].scores(batch),
            temperature=self.temperature,
            teacher_temperature=self.teacher_temperature,
            counted=(_first_occurrences(batch.image_rows), _first_occurrences(batch.text_rows)) if repeats else None,
        )
        return {"divergence": found}


def _first_occurrences(rows: Tensor) -> Tensor:
    """(N,) whether no earlier element of ``rows`` (N,) is the same."""
    return ~(rows.unsqueeze(1) == rows).tril(-1).any(1)


def _to_half(items: Encoded, *, parts: bool) -> Encoded:
    if not parts or items.parts is None:
        return Encoded(items.vectors.half())
    return Encoded(items.vectors.half(), items.parts.half(), items.mask)


def _select_rows(items: Encoded, rows: Tensor) -> Encoded:
    """Select items, in float32 and with parts up to the last real one."""
    some = items.rows(rows)
    if some.mask is not None:
        some = truncate_parts(some, max(1, int(used_lengths(some.mask).max())))
    return _to_float(some)


def _to_float(items: Encoded) -> Encoded:
    return Encoded(items.vectors.float(), None if items.parts is None else items.parts.float(), items.mask)
