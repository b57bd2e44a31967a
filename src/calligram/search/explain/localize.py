"""Where in a picture a phrase is: boxes of the picture, ranked by a matcher of regions and phrases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.data.boxes import iou
from calligram.errors import NotFiniteError, UserError
from calligram.features.images.region_input import RegionInput
from calligram.features.inputs import Inputs
from calligram.features.regions.proposers import Proposer
from calligram.features.texts.chunker import PhraseSpan
from calligram.models.matcher import Encoded, Matcher

Floats = NDArray[np.float32]
Box = tuple[float, float, float, float]

APART = 0.5
"""boxes that overlap more count as one answer"""


class BoxHit(NamedTuple):
    """A box of a picture that answers a phrase."""

    box: Box
    """x0, y0, x1, y1 in pixels of the picture, x1 and y1 being the far edges"""
    score: float
    """the matcher's; higher is better, and comparable within a picture only"""
    rank: int


class EncodedProposals(NamedTuple):
    """A picture's proposals as a matcher sees them: any number of phrases can be asked of it."""

    boxes: Floats
    regions: Encoded


class LocatedPhrase(NamedTuple):
    """A noun phrase of a sentence and its boxes."""

    span: PhraseSpan
    text: str
    hits: list[BoxHit]


@torch.no_grad()
def look(matcher: Matcher, inputs: Inputs, image: Image.Image, proposer: Proposer | None = None) -> EncodedProposals:
    """Propose boxes in a picture and encode them: what takes time, done once for all phrases.

    Args:
        proposer: the run's own, where it has been made before; a detector takes time to load.

    Raises:
        UserError: when the matcher was not trained on regions.
    """
    side = region_side(inputs)
    picture = image.convert("RGB")
    boxes = side.propose(picture, proposer)
    device = next(matcher.parameters()).device
    features: Tensor = side.finish(side.regions(picture, boxes).to(device))
    return EncodedProposals(boxes, matcher.eval().encode_images(features))


@torch.no_grad()
def rank(
    matcher: Matcher,
    inputs: Inputs,
    looked: EncodedProposals,
    phrases: Sequence[str],
    k: int = 3,
    apart: float | None = APART,
) -> list[list[BoxHit]]:
    """The ``k`` best boxes for each phrase.

    Args:
        apart: leave out a box that overlaps a better one by more than this; None keeps all, as recalls are measured.
    """
    if k < 1:
        raise UserError(f"k must be at least 1, got {k}")
    for phrase in phrases:
        if not phrase.strip():
            raise UserError("the phrase is empty; give some words, such as 'a dog'")
    if not phrases:
        return []
    words, mask = inputs.texts.texts(list(phrases))
    device = next(matcher.parameters()).device
    texts = matcher.eval().encode_texts(words.to(device), mask.to(device))
    scores = matcher.score(looked.regions, texts).float().cpu().numpy()
    if not np.isfinite(scores).all():
        raise NotFiniteError("the localizer's scores are not finite; it cannot be used")
    return [_best(looked.boxes, column, k, apart) for column in scores.T]


def localize_phrase(
    matcher: Matcher, inputs: Inputs, image: Image.Image, phrase: str, k: int = 3, *, apart: float | None = APART
) -> list[BoxHit]:
    """The boxes of a picture that a phrase most likely speaks of, best first.

    See also: ``look`` and ``rank`` for several phrases of one picture, ``localize_sentence`` for those of a sentence.
    """
    return rank(matcher, inputs, look(matcher, inputs, image), [phrase], k, apart)[0]


def localize_sentence(
    matcher: Matcher, inputs: Inputs, looked: EncodedProposals, sentence: str, k: int = 1, apart: float | None = APART
) -> list[LocatedPhrase]:
    """The noun phrases of a sentence with their boxes (two-branch, Sec. 4 and Fig. 2).

    A text in which none is found is a phrase itself, such as a single word.

    Raises:
        UserError: when the run has no chunker.
    """
    if inputs.chunker is None:
        raise UserError("this run has not learnt to find noun phrases (chunks=0); ask for one phrase at a time")
    spans = inputs.chunker.spans(sentence) or [whole(sentence)]
    texts = [sentence[span.start : span.end] for span in spans]
    hits = rank(matcher, inputs, looked, texts, k, apart)
    return [LocatedPhrase(*found) for found in zip(spans, texts, hits, strict=True)]


def whole(text: str) -> PhraseSpan:
    """All of a text but the blanks around it."""
    start = len(text) - len(text.lstrip())
    return PhraseSpan(start, start + len(text.strip()))


def region_side(inputs: Inputs) -> RegionInput:
    """The image side of a matcher of regions."""
    if not isinstance(inputs.images, RegionInput):
        raise UserError(
            'this matcher sees whole pictures; train one on regions with "calligram train two-branch-phrases"'
        )
    return inputs.images


def _best(boxes: Floats, scores: Floats, k: int, apart: float | None) -> list[BoxHit]:
    hits: list[BoxHit] = []
    kept = np.zeros((0, 4), dtype=np.float32)
    for place in np.argsort(-scores, kind="stable").tolist():
        if len(hits) == k:
            break
        if apart is not None and len(kept) and iou(boxes[place][None], kept).max() > apart:
            continue
        kept = np.concatenate([kept, boxes[place][None]])
        x0, y0, x1, y1 = boxes[place].tolist()
        hits.append(BoxHit((x0, y0, x1, y1), float(scores[place]), len(hits) + 1))
    return hits
