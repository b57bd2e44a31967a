"""The interface of all matchers: an image encoder, a text encoder and a score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calligram.device import device_of
from calligram.errors import UserError
from calligram.vectors import unit_length

QuerySide = Literal["words", "regions"]
"""which parts attend to the parts of the other modality: words to regions, or regions to words"""


class Encoded(NamedTuple):
    """Encodings of N images or N texts."""

    vectors: Tensor
    """(N, D) global embeddings, not normalised; their cosine is the first-stage score of a search"""
    parts: Tensor | None = None
    """(N, K, D) embeddings of regions or words; None when the matcher has none"""
    mask: Tensor | None = None
    """(N, K) True for real parts, False for padding"""

    def rows(self, index: Tensor | slice) -> Encoded:
        """Select items by index."""
        return Encoded(*(None if t is None else t[index] for t in self))  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> Encoded:
        """Move all tensors to a device."""
        return Encoded(*(None if t is None else t.to(device) for t in self))  # type: ignore[arg-type]


def stack(pieces: Sequence[Encoded]) -> Encoded:
    """Concatenate encodings along the items; parts are padded to the longest item."""
    vectors = torch.cat([p.vectors for p in pieces])
    if pieces[0].parts is None:
        return Encoded(vectors)
    longest = max(p.parts.shape[1] for p in pieces if p.parts is not None)
    parts, masks = [], []
    for piece in pieces:
        assert piece.parts is not None
        mask = piece.mask if piece.mask is not None else piece.parts.new_ones(piece.parts.shape[:2], dtype=torch.bool)
        missing = longest - piece.parts.shape[1]
        parts.append(F.pad(piece.parts, (0, 0, 0, missing)))
        masks.append(F.pad(mask, (0, missing)))
    return Encoded(vectors, torch.cat(parts), torch.cat(masks))


@dataclass(frozen=True)
class Scoring:
    """Kind and range of a matcher's score, and what the score depends on."""

    kind: Literal["cosine", "distance", "log-odds", "attention", "mean", "other"]
    """cosine of the vectors; minus the Euclidean distance of unit vectors; log-odds of a match; attention between
    parts; mean of other scores; or another function"""
    low: float = -math.inf
    """smallest possible score"""
    high: float = math.inf
    """largest possible score"""
    vectors: bool = True
    """whether the score depends on the vectors; if not, the vectors serve the first stage of a search only"""
    parts: bool = False
    """whether the score needs parts"""

    reranks: bool = field(init=False, repr=False)
    """whether a second stage can rerank with the score; cosine and distance order by the cosine of the vectors"""
    bounded: bool = field(init=False, repr=False)
    """whether the range of the score is finite"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reranks", self.kind not in ("cosine", "distance"))
        object.__setattr__(self, "bounded", math.isfinite(self.low) and math.isfinite(self.high))


class Matcher(nn.Module):
    """Scores images against texts. A higher score is a better match. Rows are images, columns are texts."""

    scoring: Scoring = Scoring("other")
    """kind and range of the score; a class whose score needs parts or has a range sets its own, or an instance does"""
    tile: ClassVar[int] = 4096
    """number of pairs that ``score`` passes to ``score_pairs`` at a time"""
    settings: Any
    """frozen dataclass from which the matcher is built; it is saved with the weights"""
    _measured_size: int = 0

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode prepared images."""
        raise NotImplementedError

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode prepared texts."""
        raise NotImplementedError

    @property
    def vector_size(self) -> int:
        """Size of an item's vector: ``settings.dim``, or the size that ``measure_vectors`` found.

        Raises:
            UserError: when neither is known.
        """
        size = getattr(getattr(self, "settings", None), "dim", self._measured_size)
        if not size:
            raise UserError(
                f"the size of the vectors of {type(self).__name__} is not known; add a field dim to its settings, or "
                "override the property vector_size"
            )
        return int(size)

    def measure_vectors(self, texts: Tensor, mask: Tensor | None = None) -> None:
        """Measure ``vector_size`` by encoding prepared texts, where the settings have no ``dim``."""
        if getattr(getattr(self, "settings", None), "dim", None) is None:
            training, device = self.training, device_of(self)
            mask = None if mask is None else mask.to(device)
            with torch.no_grad():
                self._measured_size = self.eval().encode_texts(texts.to(device), mask).vectors.shape[-1]
            self.train(training)

    @property
    def part_size(self) -> int:
        """Size of the parts of an image in training; of its vector where the matcher has no parts."""
        return self.vector_size

    @property
    def attends(self) -> frozenset[QuerySide]:
        """Which parts attend to the other modality in the score; empty when the score compares one vector with one
        vector.
        """
        return frozenset()

    def attention_weights(self, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
        """Return the attention weights of aligned pairs: of each word over the regions, and of each region over the
        words.

        Only for matchers that attend. Both tensors are (N, R, W), with R regions and W words. Both are computed even if
        the score uses one of them. Padding has weight zero.
        """
        raise NotImplementedError

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score aligned pairs: (N,)."""
        raise NotImplementedError

    def score_some(self, images: Encoded, texts: Encoded, rows: Tensor, columns: Tensor) -> Tensor:
        """Score the pairs (rows[n], columns[n]): (N,), in tiles of ``score_pairs``.

        Subclasses override it to compute what depends on one item once, and not once for each of its pairs.
        """
        tiles = [
            self.score_pairs(images.rows(some), texts.rows(others))
            for some, others in zip(torch.split(rows, self.tile), torch.split(columns, self.tile), strict=True)
        ]
        return torch.cat(tiles)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score every image with every text: (I, T), in tiles of ``score_pairs``."""
        columns = len(texts.vectors)
        pairs = torch.arange(len(images.vectors) * columns, device=images.vectors.device)
        found = Matcher.score_some(self, images, texts, pairs // columns, pairs % columns)
        return found.view(len(images.vectors), columns)


class EmbeddingMatcher(Matcher):
    """A matcher whose score is the cosine of the vectors."""

    scoring = Scoring("cosine", -1.0, 1.0)

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Cosine of aligned vectors."""
        return F.cosine_similarity(images.vectors.float(), texts.vectors.float(), dim=-1, eps=1e-8)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Cosine of all pairs, by one matrix product."""
        return cosines(images.vectors, texts.vectors)


def cosines(rows: Tensor, columns: Tensor) -> Tensor:
    """Cosine of every row vector with every column vector, (R, C), in float32.

    Autocast is switched off here: half precision rounds away the differences between close neighbours.
    """
    with torch.autocast(rows.device.type, enabled=False):
        return unit_length(rows) @ unit_length(columns).T


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half precision to float32, for sums and comparisons; float64 stays."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
