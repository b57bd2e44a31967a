"""Where the words of a sentence look in a picture, and which words each region of it looks at."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.features.images.region_input import grid_part_boxes, stored_part_boxes
from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import token_spans, token_word_indices
from calligram.models.matcher import Encoded, Matcher, QuerySide
from calligram.text import whitespace_word_spans

Floats = NDArray[np.float32]
LOW, HIGH = 0.36, 0.64
"""shares of a picture's side between which is its middle"""
DIGITS = 6
"""of shares and boxes as they are printed and sent"""


class EncodedPicture(NamedTuple):
    """A picture as a matcher sees it: any number of sentences can be asked of it."""

    encoded: Encoded
    """of this picture alone"""
    boxes: Floats | None
    """(R, 4) left, top, right and bottom of its regions in shares of the picture; None where they are not known"""


class WordParts(NamedTuple):
    """The words of a sentence and the parts that a text input makes of them."""

    words: int
    owners: list[int | None]
    """number of the word that each part belongs to; None for marks of the ends and punctuation"""


class AttentionShares(NamedTuple):
    """Who looks where, in shares: of words at regions, and of regions at words."""

    boxes: Floats | None
    """(R, 4) of the regions, as ``Seen`` has them"""
    words: Floats
    """(W, R) where each word looks, which sums to one; zero throughout for a word that was cut off"""
    regions: Floats
    """(R, W) which words each region looks at; one, less what it gives to the marks of the ends and to punctuation"""
    scored: frozenset[QuerySide]
    """whose looks the matcher's score goes by; the others are what they would be by the same attention"""

    @property
    def rest(self) -> Floats:
        """(R,) what each region gives to the marks of the ends and to punctuation, which are not shown."""
        rest: Floats = np.clip(1 - self.regions.sum(1), 0, 1)
        return rest

    def at(self, x: float, y: float) -> int | None:
        """The smallest region around a point, given in shares of the picture; None where there is none."""
        if self.boxes is None:
            return None
        left, top, right, bottom = self.boxes.T
        around = np.flatnonzero((left <= x) & (x <= right) & (top <= y) & (y <= bottom))
        areas = (right - left) * (bottom - top)
        return int(around[np.argmin(areas[around])]) if len(around) else None

    def plain(self) -> dict[str, Any]:
        """As JSON has it; a word that was cut off has null."""
        return {
            "boxes": None if self.boxes is None else _rounded(self.boxes),
            "words": [row if any(row) else None for row in _rounded(self.words)],
            "regions": _rounded(self.regions),
            "rest": _rounded(self.rest),
            "scored": sorted(self.scored),
        }


def _rounded(values: Floats) -> list[Any]:
    found: list[Any] = np.round(values.astype(np.float64), DIGITS).tolist()
    return found


def place_of(box: Floats) -> str:
    """Where a box lies, in words; the page says it in the same.

    >>> place_of(np.array([0.7, 0.0, 1.0, 0.3], dtype=np.float32))
    'upper right'
    """
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    parts = ["upper" if y < LOW else "lower" if y > HIGH else "", "left" if x < LOW else "right" if x > HIGH else ""]
    return " ".join(filter(None, parts)) or "middle"


@torch.no_grad()
def see_picture(matcher: Matcher, inputs: Inputs, image: Image.Image) -> EncodedPicture:
    """A picture that is in no collection.

    Raises:
        UserError: when the matcher reads features that came with a collection.
    """
    encoded = _encoded(matcher, inputs, inputs.images.images([image.convert("RGB")]))
    count = 1 if encoded.parts is None else encoded.parts.shape[1]
    return EncodedPicture(encoded, grid_part_boxes(inputs.images, image.size, count))


@torch.no_grad()
def see_image(matcher: Matcher, inputs: Inputs, collection: Collection, id: str) -> EncodedPicture:
    """An image of a collection, whose stored features are read where the matcher goes by them.

    Raises:
        UserError: when the collection has no such image, or not the features.
    """
    row = row_of(collection, id)
    if not isinstance(inputs.images, StoredInput):
        return see_picture(matcher, inputs, collection.pictures.open(row))
    rows = inputs.images.load(collection.visuals(np.array([row]))).take(np.zeros(1, dtype=np.int64))
    return EncodedPicture(_encoded(matcher, inputs, rows), stored_part_boxes(inputs.images, collection, row))


def row_of(collection: Collection, id: str) -> int:
    """The row of an image.

    Raises:
        UserError: when there is none of this id.
    """
    ids = collection.column("images", "id")
    if id not in ids:
        raise UserError(
            f"{collection.folder} has no image '{id}'; its images are called as '{ids[0]}' is"
            if ids
            else f"{collection.folder} has no images"
        )
    return ids.index(id)


def _encoded(matcher: Matcher, inputs: Inputs, rows: Tensor) -> Encoded:
    device = next(matcher.parameters()).device
    return matcher.eval().encode_images(inputs.images.finish(rows.to(device)))


@torch.no_grad()
def attend(matcher: Matcher, inputs: Inputs, seen: EncodedPicture, sentence: str) -> AttentionShares | None:
    """Who looks where between a picture and the words of a sentence, as ``words_of`` finds them.

    None for a matcher that compares one vector with another, and where nothing is known of where words are.

    See also: ``Searcher.explain``, for a picture of a library.
    """
    spelt = words_and_parts(inputs, sentence) if matcher.attends else None
    if spelt is None:
        return None
    device = next(matcher.parameters()).device
    words, mask = inputs.texts.texts([one_spaced(sentence)])
    texts = matcher.eval().encode_texts(words.to(device), mask.to(device))
    return attended(matcher, seen, texts, spelt)


def one_spaced(sentence: str) -> str:
    """The sentence as it is encoded to be explained; its words stay as many as they were."""
    return " ".join(sentence.split())


def words_and_parts(inputs: Inputs, sentence: str) -> WordParts | None:
    """Which word of a sentence each part of it belongs to; None where the text input does not tell."""
    plain = one_spaced(sentence)
    parts, words = token_spans(inputs.texts, plain), whitespace_word_spans(plain)
    return None if parts is None else WordParts(len(words), token_word_indices(parts, words))


@torch.no_grad()
def attended(matcher: Matcher, seen: EncodedPicture, texts: Encoded, spelt: WordParts) -> AttentionShares:
    """The matcher's shares by whole words.

    A word of several pieces looks where they look on average, and is looked at as much as all of them together. Nothing
    is made to sum to one again: what a region gives to the marks of the ends stays theirs.

    Args:
        texts: the sentence alone, at the matcher's device.
        spelt: what ``words_and_parts`` says of it.
    """
    from_words, from_regions = (
        shares[0].float().cpu().numpy()
        for shares in matcher.attention_weights(seen.encoded.to(texts.vectors.device), texts)
    )
    mask, boxes = seen.encoded.mask, seen.boxes
    real = np.ones(len(from_words), dtype=bool) if mask is None else mask[0].cpu().numpy()
    if boxes is not None and len(boxes) == len(real):
        boxes = boxes[real]
    belongs = np.zeros((spelt.words, from_words.shape[1]), dtype=np.float32)
    for part, word in enumerate(spelt.owners):
        if word is not None:
            belongs[word, part] = 1
    mean = belongs / np.maximum(belongs.sum(1, keepdims=True), 1)
    # Boxes that are not as many as the regions are not theirs.
    known = boxes if boxes is not None and len(boxes) == real.sum() else None
    return AttentionShares(known, mean @ from_words[real].T, from_regions[real] @ belongs.T, matcher.attends)
