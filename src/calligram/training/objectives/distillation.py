"""Distillation: train a student to reproduce the scores or the vectors of a teacher on the same training items."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from calligram.losses.contrastive import symmetric_kl_divergence, vector_distance
from calligram.models.layers.score_tiles import truncate_parts, used_lengths
from calligram.models.matcher import Encoded, Matcher
from calligram.training.batches.batch import Batch
from calligram.training.objectives.objective import InfoNCEObjective

Compared = Literal["scores", "vectors"]


class Teacher:
    """A frozen matcher with its encodings of all training items, in half precision.

    Items are encoded once with the inputs of the teacher. If the student has the same image input, the teacher instead
    encodes the images of each batch, as they are augmented for the student: the teacher then has something to say about
    every view, and not only about images that it has been trained on.
    """

    def __init__(self, matcher: Matcher, images: Encoded | None, texts: Encoded) -> None:
        """Args:
        images: encodings of all images; None to encode the images of each batch.
        """
        self.matcher = matcher.eval().requires_grad_(False)
        parts = matcher.scoring.parts
        self.images = None if images is None else _to_half(images, parts=parts)
        self.texts = _to_half(texts, parts=parts)

    @torch.no_grad()
    def encode(self, batch: Batch) -> tuple[Encoded, Encoded]:
        """Encodings of the images and texts of a batch."""
        texts = _select_rows(self.texts, batch.text_rows)
        if self.images is not None:
            return _select_rows(self.images, batch.image_rows), texts
        images = self.matcher.encode_images(batch.images)
        return _to_float(images if self.matcher.scoring.parts else Encoded(images.vectors)), texts


class DistillationObjective(InfoNCEObjective):
    """Distance of a batch from a teacher: of the distributions of scores, whose temperature is learnt for the student,
    or of the vectors.
    """

    def __init__(self, teacher: Teacher, of: Compared = "scores", teacher_temperature: float = 0.05) -> None:
        """Args:
        of: what is compared.
        teacher_temperature: divisor of the teacher's scores; a smaller one gives more weight to its best candidates.
        """
        super().__init__(learn=of == "scores")
        self.of, self.teacher_temperature = of, teacher_temperature
        self._teacher = [teacher]  # inside a list: its weights are neither trained nor saved here

    @property
    def graph_safe(self) -> bool:
        """If the teacher compares vectors: the lengths of its texts would have to be read."""
        return all(side is None or side.mask is None for side in (self._teacher[0].images, self._teacher[0].texts))

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return one term."""
        wanted = self._teacher[0].encode(batch)
        if self.of == "vectors":
            pairs = zip((images, texts), wanted, strict=True)
            return {"distance": torch.stack([vector_distance(own.vectors, its.vectors) for own, its in pairs]).mean()}
        found = symmetric_kl_divergence(
            matcher.score(images, texts),
            self._teacher[0].matcher.score(*wanted).detach().float(),
            temperature=self.temperature,
            teacher_temperature=self.teacher_temperature,
        )
        return {"divergence": found}


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
