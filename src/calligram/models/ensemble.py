"""Matchers that combine other matchers: sentences with phrases, and ensembles with the mean score."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calligram.features.images.backbones import Backbone, grid_cells
from calligram.features.images.stored_input import real_parts
from calligram.features.texts.text_encoder import TextEncoder
from calligram.features.texts.vocabulary import known_lengths
from calligram.models.catalog import build
from calligram.models.matcher import Encoded, Matcher, QuerySide, Scoring
from calligram.vectors import unit_length


@dataclass(frozen=True)
class SentencePhraseSettings:
    """Two matchers and the weight of the second."""

    sentences: str
    """description of the image-sentence matcher, the output of ``catalog.describe`` as JSON"""
    phrases: str
    """description of the region-phrase matcher, in the same form"""
    alpha: float = 0.2
    """weight of the region-phrase score; the paper's value"""


class SentencePhraseMatcher(Matcher):
    """Weighted sum of the image-sentence distance and the region-phrase distance (two-branch, Eq. 8).

    D(x, y) = (1 - alpha) d(x, y) + alpha d_rp(x, y), where d_rp is the mean over the sentence's phrases of the distance
    to the image's best region. Scores are minus distances, so the best region has the highest score. Matchers with
    other scores are combined in the same way. A sentence without phrases, or an image without regions, has d_rp = d.
    """

    settings: SentencePhraseSettings

    def __init__(self, settings: SentencePhraseSettings) -> None:
        super().__init__()
        if not 0 <= settings.alpha <= 1:
            raise ValueError(f"alpha must be from 0 to 1, got {settings.alpha}")
        self.settings = settings
        self.sentences = build(json.loads(settings.sentences))
        self.phrases = build(json.loads(settings.phrases))
        weights = 1 - settings.alpha, settings.alpha
        self.scoring = mean_scoring([self.sentences.scoring, self.phrases.scoring], weights, parts=True)

    @property
    def vector_size(self) -> int:
        """Vector size of the image-sentence matcher."""
        return self.sentences.vector_size

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode images (N, 1 + R, D) as ``JoinedImages`` packs them: the whole image first, then its regions."""
        real = real_parts(images[:, 1:]) if mask is None else mask[:, 1:]
        vectors = self.sentences.encode_images(images[:, 0, : self.sentences.image_dim]).vectors
        parts = _encode_parts(self.phrases.encode_images, images[:, 1:, : self.phrases.image_dim], real)
        return Encoded(vectors, parts, real)

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode texts (N, 1 + P, D) as ``JoinedTexts`` packs them: the sentence first, then its phrases."""
        real = real_parts(texts[:, 1:]) if mask is None else mask[:, 1:]
        vectors = self.sentences.encode_texts(texts[:, 0, : self.sentences.text_dim]).vectors
        parts = _encode_parts(self.phrases.encode_texts, texts[:, 1:, : self.phrases.text_dim], real)
        return Encoded(vectors, parts, real)

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score aligned pairs one by one, since the numbers of regions and phrases differ."""
        sentence_scores = self.sentences.score_pairs(Encoded(images.vectors), Encoded(texts.vectors))
        return torch.stack(
            [
                self._combine(own.view(1, 1), images.rows(slice(i, i + 1)), texts.rows(slice(i, i + 1)))[0, 0]
                for i, own in enumerate(sentence_scores)
            ]
        )

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score all pairs, one image at a time against the phrases of all texts."""
        sentence_scores = self.sentences.score(Encoded(images.vectors), Encoded(texts.vectors))
        rows = [self._combine(own[None], images.rows(slice(i, i + 1)), texts) for i, own in enumerate(sentence_scores)]
        return torch.cat(rows) if rows else sentence_scores

    def _combine(self, sentence_scores: Tensor, image: Encoded, texts: Encoded) -> Tensor:
        """Eq. 8 for one image and several texts, (1, T), from the image-sentence scores."""
        alpha = self.settings.alpha
        regions, phrases = _real_parts(image), _real_parts(texts)
        if not alpha or not len(regions) or not len(phrases):
            return sentence_scores
        assert texts.mask is not None
        best = self.phrases.score(Encoded(regions), Encoded(phrases)).amax(0)
        counts = texts.mask.sum(1)
        owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
        mean = torch.zeros_like(sentence_scores[0]).index_add(0, owner, best.to(sentence_scores.dtype)) / counts.clamp(
            min=1
        )
        return torch.where(counts > 0, (1 - alpha) * sentence_scores + alpha * mean, sentence_scores)


@dataclass(frozen=True)
class EnsembleSettings:
    """The ensemble members, which have the same inputs, and the networks that they share."""

    members: tuple[str, ...]
    """description of each ensemble member, the output of ``catalog.describe`` as JSON"""
    backbone: str = ""
    """architecture of the shared backbone, from ``Backbone.description``; ensemble members then receive its cells as
    stored features. Empty for none"""
    encoder: str = ""
    """architecture of the shared text encoder, from ``TextEncoder.description``; ensemble members then receive its
    states. Empty for none"""


class Ensemble(Matcher):
    """Mean score of several matchers, as in the ensemble rows of scan, bfan and vsrn (aoq, Table 1).

    The vectors of the members are normalised and concatenated, so that their cosine is the mean of the members'
    cosines. The parts of members with parts are concatenated too. Each member has its own networks, or all share one
    backbone and one text encoder, which then run once.
    """

    settings: EnsembleSettings

    def __init__(self, settings: EnsembleSettings) -> None:
        super().__init__()
        if not settings.members:
            raise ValueError("an ensemble needs at least one member")
        self.settings = settings
        self.members = nn.ModuleList(build(json.loads(member)) for member in settings.members)
        own = [member.scoring for member in self._members()]
        self.scoring = mean_scoring(own, [1 / len(own)] * len(own), parts=any(scoring.parts for scoring in own))
        # The cosine of concatenated vectors is the mean of the cosines, but not the mean of the distances.
        if all(scoring.kind == "cosine" for scoring in own):
            self.scoring = Scoring("cosine", -1.0, 1.0)
        self._vector_sizes: list[int] = []
        self._part_sizes: list[int] = []
        if settings.backbone:
            self.image = Backbone.from_description(settings.backbone)
        if settings.encoder:
            self.text = nn.ModuleDict({"encoder": TextEncoder.from_description(settings.encoder)})

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode images with every member."""
        if self.settings.backbone and images.ndim > 3:
            images = grid_cells(self.image, images)
            mask = torch.ones(images.shape[:2], dtype=torch.bool, device=images.device)
        return self._concatenate([member.encode_images(images, mask) for member in self._members()])

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode texts with every member."""
        if self.settings.encoder and texts.ndim == 2:
            mask = torch.ones_like(texts, dtype=torch.bool) if mask is None else mask
            texts = self.text["encoder"](texts, mask)
        return self._concatenate([member.encode_texts(texts, mask) for member in self._members()])

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Mean over the members."""
        return torch.stack([member.score_pairs(one, two) for member, one, two in self.by_member(images, texts)]).mean(0)

    def score_some(self, images: Encoded, texts: Encoded, rows: Tensor, columns: Tensor) -> Tensor:
        """Mean over the members."""
        members = self.by_member(images, texts)
        return torch.stack([member.score_some(one, two, rows, columns) for member, one, two in members]).mean(0)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Mean over the members."""
        return torch.stack([member.score(one, two) for member, one, two in self.by_member(images, texts)]).mean(0)

    @property
    def vector_size(self) -> int:
        """Sum of the members' vector sizes."""
        return sum(self._vector_sizes or [member.vector_size for member in self._members()])

    @property
    def attends(self) -> frozenset[QuerySide]:
        """Union of the members' attending parts."""
        return frozenset[QuerySide]().union(*(member.attends for member in self._members()))

    def attention_weights(self, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
        """Mean attention weights of the members that attend."""
        found = [
            member.attention_weights(one, two) for member, one, two in self.by_member(images, texts) if member.attends
        ]
        words, regions = (torch.stack(shares).mean(0) for shares in zip(*found, strict=True))
        return words, regions

    def by_member(self, images: Encoded, texts: Encoded) -> Iterator[tuple[Matcher, Encoded, Encoded]]:
        """Yield every member with its own encodings of images and texts, its vectors at length one."""
        return zip(self._members(), self._split(images), self._split(texts), strict=True)

    @property
    def shares_networks(self) -> bool:
        """Whether the members share a backbone or a text encoder."""
        return bool(self.settings.backbone or self.settings.encoder)

    def encode_separately(
        self, images: Tensor, texts: Tensor, mask: Tensor, lengths: Sequence[int] = ()
    ) -> Iterator[tuple[Matcher, Encoded, Encoded]]:
        """Yield what ``by_member`` yields for the same inputs; a member encodes them when it is its turn.

        Members must not share networks.

        Args:
            lengths: number of tokens of each text; empty if unknown.
        """
        for member in self._members():
            one = member.encode_images(images)
            with known_lengths(lengths):
                two = member.encode_texts(texts, mask)
            yield member, _as_member(member, one), _as_member(member, two)

    def _members(self) -> list[Matcher]:
        return [member for member in self.members if isinstance(member, Matcher)]

    def _concatenate(self, encodings: list[Encoded]) -> Encoded:
        members = self._members()
        kept = [_as_member(member, items) for member, items in zip(members, encodings, strict=True)]
        vectors = torch.cat([e.vectors for e in kept], dim=-1)
        # Recorded here, because the settings of a class from outside need not have a ``dim``.
        self._vector_sizes = [e.vectors.shape[-1] for e in kept]
        self._part_sizes = [0 if e.parts is None else e.parts.shape[-1] for e in kept]
        with_parts = [e for member, e in zip(members, kept, strict=True) if member.scoring.parts]
        parts = [e.parts for e in with_parts if e.parts is not None]
        if not parts:
            return Encoded(vectors)
        if any(p.shape[1] != parts[0].shape[1] for p in parts[1:]):
            raise ValueError(f"ensemble members must have the same number of parts, got {[p.shape[1] for p in parts]}")
        return Encoded(vectors, torch.cat(parts, dim=-1), with_parts[0].mask)

    def _split(self, items: Encoded) -> list[Encoded]:
        """Split encodings into those of the members; vectors stay at length one."""
        members = self._members()
        vector_sizes = self._vector_sizes or [member.vector_size for member in members]
        vectors = torch.split(items.vectors, vector_sizes, dim=-1)
        if items.parts is None:
            return [Encoded(v) for v in vectors]
        sizes = self._part_sizes or [member.part_size if member.scoring.parts else 0 for member in members]
        parts = torch.split(items.parts, sizes, dim=-1)
        return [
            Encoded(v, p, items.mask) if size else Encoded(v) for v, p, size in zip(vectors, parts, sizes, strict=True)
        ]


def _as_member(member: Matcher, items: Encoded) -> Encoded:
    """Return what an ensemble keeps of a member's encodings: vectors at length one, and parts only if scores need them.

    The vectors of an unknown score stay as they are, because it may depend on their length. Some members give parts
    that only their training objective uses.
    """
    vectors = items.vectors if member.scoring.kind == "other" else unit_length(items.vectors)
    return Encoded(vectors, items.parts, items.mask) if member.scoring.parts else Encoded(vectors)


def mean_scoring(scorings: Sequence[Scoring], weights: Sequence[float], *, parts: bool) -> Scoring:
    """Return the scoring of a weighted mean of scores; its range is the weighted mean of their ranges."""
    used = [(own, weight) for own, weight in zip(scorings, weights, strict=True) if weight]
    low, high = sum(weight * own.low for own, weight in used), sum(weight * own.high for own, weight in used)
    return Scoring("mean", low, high, vectors=any(own.vectors for own, _ in used), parts=parts)


def _real_parts(items: Encoded) -> Tensor:
    """Real parts of all items, (M, D)."""
    assert items.parts is not None
    assert items.mask is not None
    return items.parts[items.mask]


def _encode_parts(encode: object, parts: Tensor, real: Tensor) -> Tensor:
    """Encode the real parts (N, K, D); padding becomes zero."""
    assert callable(encode)
    found = encode(parts[real]).vectors if real.any() else parts.new_zeros(0, 1)
    out = found.new_zeros(*real.shape, found.shape[1])
    out[real] = found
    return out
