"""Phrase localization: the boxes of a picture, ranked by a matcher of regions and phrases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.data.boxes import iou
from calligram.device import device_of
from calligram.errors import NotFiniteError, UserError
from calligram.features.images.region_input import RegionInput
from calligram.features.inputs import Inputs
from calligram.features.regions.proposers import Proposer
from calligram.features.texts.chunker import PhraseSpan
from calligram.models.matcher import Encoded, Matcher

Floats = NDArray[np.float32]
Box = tuple[float, float, float, float]

MAX_HIT_OVERLAP = 0.5
"""IoU above which a box is left out because it repeats a better one"""


class BoxHit(NamedTuple):
    """A box of a picture that matches a phrase."""

    box: Box
    """x0, y0, x1, y1 in pixels: left, top, right and bottom edge"""
    score: float
    """of the matcher; higher is better, and comparable within one picture only"""
    rank: int


class EncodedProposals(NamedTuple):
    """The proposals of a picture, encoded once for any number of phrases."""

    boxes: Floats
    regions: Encoded


class LocatedPhrase(NamedTuple):
    """A noun phrase of a sentence and its boxes."""

    span: PhraseSpan
    text: str
    hits: list[BoxHit]


@torch.no_grad()
def encode_proposals(
    matcher: Matcher, inputs: Inputs, image: Image.Image, proposer: Proposer | None = None
) -> EncodedProposals:
    """Propose boxes in a picture and encode them, which is the slow part of localization.

    Args:
        matcher: of regions and phrases.
        inputs: of the matcher.
        image: the picture.
        proposer: of the run; it is loaded where it is not given, which takes time for a detector.

    Raises:
        UserError: when the matcher was not trained on regions.
    """
    regions = require_region_input(inputs)
    picture = image.convert("RGB")
    boxes = regions.propose(picture, proposer)
    device = device_of(matcher)
    features: Tensor = regions.finish(regions.regions(picture, boxes).to(device))
    return EncodedProposals(boxes, matcher.eval().encode_images(features))


@torch.no_grad()
def rank_boxes(
    matcher: Matcher,
    inputs: Inputs,
    proposals: EncodedProposals,
    phrases: Sequence[str],
    k: int = 3,
    max_overlap: float | None = MAX_HIT_OVERLAP,
) -> list[list[BoxHit]]:
    """The ``k`` best boxes for each phrase.

    Args:
        matcher: of regions and phrases.
        inputs: of the matcher.
        proposals: of the picture.
        phrases: to localize.
        k: number of boxes.
        max_overlap: leave out a box whose IoU with a better one is above this; None keeps all, as for measuring recall.
    """
    if k < 1:
        raise UserError(f"k must be at least 1, got {k}")
    for phrase in phrases:
        if not phrase.strip():
            raise UserError("the phrase is empty; give some words, such as 'a dog'")
    if not phrases:
        return []
    words, mask = inputs.texts.texts(list(phrases))
    device = device_of(matcher)
    texts = matcher.eval().encode_texts(words.to(device), mask.to(device))
    scores = matcher.score(proposals.regions, texts).float().cpu().numpy()
    if (regions := inputs.images.region_input) is not None:
        scores = regions.voted(scores.T, proposals.boxes).T
    if not np.isfinite(scores).all():
        raise NotFiniteError("the localizer's scores are not finite; it cannot be used")
    return [_best(proposals.boxes, column, k, max_overlap) for column in scores.T]


def localize_phrase(
    matcher: Matcher,
    inputs: Inputs,
    image: Image.Image,
    phrase: str,
    k: int = 3,
    *,
    max_overlap: float | None = MAX_HIT_OVERLAP,
) -> list[BoxHit]:
    """The boxes of a picture that match a phrase best, best first.

    See also: ``encode_proposals`` and ``rank_boxes`` for several phrases, ``localize_sentence`` for a sentence.
    """
    return rank_boxes(matcher, inputs, encode_proposals(matcher, inputs, image), [phrase], k, max_overlap)[0]


def localize_sentence(
    matcher: Matcher,
    inputs: Inputs,
    proposals: EncodedProposals,
    sentence: str,
    k: int = 1,
    max_overlap: float | None = MAX_HIT_OVERLAP,
) -> list[LocatedPhrase]:
    """The noun phrases of a sentence with their boxes (two-branch, Sec. 4 and Fig. 2).

    A text without a noun phrase is itself the phrase.

    Raises:
        UserError: when the run has no chunker.
    """
    if inputs.chunker is None:
        raise UserError("this run has no noun-phrase chunker (chunker_captions=0); give one phrase at a time")
    spans = inputs.chunker.spans(sentence) or [trimmed_span(sentence)]
    texts = [sentence[span.start : span.end] for span in spans]
    hits = rank_boxes(matcher, inputs, proposals, texts, k, max_overlap)
    return [LocatedPhrase(*found) for found in zip(spans, texts, hits, strict=True)]


def trimmed_span(text: str) -> PhraseSpan:
    """The span of a text without the white space around it."""
    start = len(text) - len(text.lstrip())
    return PhraseSpan(start, start + len(text.strip()))


def require_region_input(inputs: Inputs) -> RegionInput:
    """The image input of a matcher of regions.

    Raises:
        UserError: for a matcher of whole pictures.
    """
    if inputs.images.region_input is None:
        raise UserError(
            'this matcher scores whole pictures; train one on regions with "calligram train two-branch-phrases"'
        )
    return inputs.images.region_input


def _best(boxes: Floats, scores: Floats, k: int, max_overlap: float | None) -> list[BoxHit]:
    hits: list[BoxHit] = []
    kept = np.zeros((0, 4), dtype=np.float32)
    for place in np.argsort(-scores, kind="stable").tolist():
        if len(hits) == k:
            break
        if max_overlap is not None and len(kept) and iou(boxes[place][None], kept).max() > max_overlap:
            continue
        kept = np.concatenate([kept, boxes[place][None]])
        x0, y0, x1, y1 = boxes[place].tolist()
        hits.append(BoxHit((x0, y0, x1, y1), float(scores[place]), len(hits) + 1))
    return hits
