"""What every matcher is: two encoders and a score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

QuerySide = Literal["words", "regions"]
"""who looks at the other's parts"""


class Encoded(NamedTuple):
    """What a matcher keeps of N images or texts."""

    vectors: Tensor
    """(N, D) global embeddings as the network gives them; compared by cosine, the first stage of a search"""
    parts: Tensor | None = None
    """(N, K, D) regions or words"""
    mask: Tensor | None = None
    """(N, K) True where a part is real"""

    def rows(self, index: Tensor | slice) -> Encoded:
        """Some of the items."""
        return Encoded(*(None if t is None else t[index] for t in self))  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> Encoded:
        """The same on another device."""
        return Encoded(*(None if t is None else t.to(device) for t in self))  # type: ignore[arg-type]


def stack(pieces: Sequence[Encoded]) -> Encoded:
    """Join encodings along the items, padding parts to the longest."""
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


class Matcher(nn.Module):
    """Scores images against texts. Higher is better; rows are images, columns are texts."""

    reranks: bool = True
    """the score is more than the cosine of the vectors; by its settings, where a matcher can leave the rest out"""
    scores_vectors: ClassVar[bool] = True
    """the score depends on the vectors; where it does not, they are for a first search alone"""
    scores_parts: ClassVar[bool] = False
    """the score needs parts, which are as long as ``settings.dim`` where there is one"""
    tile: ClassVar[int] = 4096
    """pairs that ``score`` hands to ``score_pairs`` at a time"""
    settings: Any
    """frozen dataclass the matcher was built from; saved with its weights"""

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode prepared images."""
        raise NotImplementedError

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode prepared texts."""
        raise NotImplementedError

    @property
    def vector_size(self) -> int:
        """Length of an item's vector."""
        return int(self.settings.dim)

    @property
    def attends(self) -> frozenset[QuerySide]:
        """Who looks at the other's parts for the score; nobody where it compares one vector with another."""
        return frozenset()

    def attention_weights(self, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
        """Where aligned pairs look, as shares (N, R, W): each word at the regions, and each region at the words.

        For matchers that attend. Both are given also where the score goes by one of them. Parts that are not real get
        no share.
        """
        raise NotImplementedError

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score aligned pairs: (N,)."""
        raise NotImplementedError

    def score_some(self, images: Encoded, texts: Encoded, rows: Tensor, columns: Tensor) -> Tensor:
        """Score the pairs (rows[n], columns[n]): (N,), by tiles of ``score_pairs``.

        Matchers that compute something for an item alone compute it here once, however many pairs it is in.
        """
        tiles = [
            self.score_pairs(images.rows(some), texts.rows(others))
            for some, others in zip(torch.split(rows, self.tile), torch.split(columns, self.tile), strict=True)
        ]
        return torch.cat(tiles)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score every image with every text: (I, T), by tiles of ``score_pairs``."""
        columns = len(texts.vectors)
        pairs = torch.arange(len(images.vectors) * columns, device=images.vectors.device)
        found = Matcher.score_some(self, images, texts, pairs // columns, pairs % columns)
        return found.view(len(images.vectors), columns)


class EmbeddingMatcher(Matcher):
    """A matcher whose score is the cosine of the vectors."""

    reranks = False

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Cosine of aligned vectors."""
        return F.cosine_similarity(images.vectors.float(), texts.vectors.float(), dim=-1, eps=1e-8)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Cosine of all vectors, as one matrix product."""
        return cosines(images.vectors, texts.vectors)


def cosines(rows: Tensor, columns: Tensor) -> Tensor:
    """Cosine of every row's vector with every column's, (R, C), in float32.

    Also where everything else is in half precision, whose steps are as large as what sets neighbours apart.
    """
    with torch.autocast(rows.device.type, enabled=False):
        return unit(rows) @ unit(columns).T


def unit(vectors: Tensor) -> Tensor:
    """Vectors at length one, in float32."""
    return F.normalize(vectors.float(), dim=-1, eps=1e-8)
