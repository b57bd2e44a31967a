"""Attention between the words of a sentence and the regions of a picture, as a matcher computes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.data.collection import Collection
from calligram.device import device_of
from calligram.errors import UserError
from calligram.features.images.region_input import stored_part_boxes
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import token_word_indices
from calligram.models.matcher import Encoded, Matcher, QuerySide
from calligram.text import whitespace_word_spans

Floats = NDArray[np.float32]
MIDDLE_START, MIDDLE_END = 0.36, 0.64
"""the middle of a picture, as shares of its side"""
SHARE_DIGITS = 6
"""decimal digits of attention shares and boxes in JSON"""


class EncodedPicture(NamedTuple):
    """A picture encoded by a matcher, for any number of sentences."""

    encoded: Encoded
    """encoding of this one picture"""
    boxes: Floats | None
    """(R, 4) left, top, right and bottom of its regions, as shares of the picture; None where they are unknown"""


class WordParts(NamedTuple):
    """The number of words of a sentence, and the word of each token of a text input."""

    words: int
    owners: list[int | None]
    """word number of each token; None for special tokens and punctuation"""


class AttentionShares(NamedTuple):
    """Attention weights of words over regions, and of regions over words."""

    boxes: Floats | None
    """(R, 4) boxes of the regions, as in ``EncodedPicture``"""
    words: Floats
    """(W, R) attention of each word over the regions; rows sum to one, or are zero for a word that was cut off"""
    regions: Floats
    """(R, W) attention of each region over the words; rows sum to one minus the attention to special tokens"""
    scored: frozenset[QuerySide]
    """directions of attention that the score of the matcher uses; the others are computed in the same way"""

    @property
    def rest(self) -> Floats:
        """(R,) attention of each region to special tokens and punctuation, which are not shown."""
        rest: Floats = np.clip(1 - self.regions.sum(1), 0, 1)
        return rest

    def region_at(self, x: float, y: float) -> int | None:
        """Return the smallest region that contains a point (as shares of the picture); None where there is none."""
        if self.boxes is None:
            return None
        left, top, right, bottom = self.boxes.T
        containing = np.flatnonzero((left <= x) & (x <= right) & (top <= y) & (y <= bottom))
        areas = (right - left) * (bottom - top)
        return int(containing[np.argmin(areas[containing])]) if len(containing) else None

    def as_json(self) -> dict[str, Any]:
        """Return JSON values; null for a word that was cut off."""
        return {
            "boxes": None if self.boxes is None else _rounded(self.boxes),
            "words": [row if any(row) else None for row in _rounded(self.words)],
            "regions": _rounded(self.regions),
            "rest": _rounded(self.rest),
            "scored": sorted(self.scored),
        }


def _rounded(values: Floats) -> list[Any]:
    found: list[Any] = np.round(values.astype(np.float64), SHARE_DIGITS).tolist()
    return found


def position_name(box: Floats) -> str:
    """Return the position of a box in words; the web page uses the same words.

    >>> position_name(np.array([0.7, 0.0, 1.0, 0.3], dtype=np.float32))
    'upper right'
    """
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    parts = [
        "upper" if y < MIDDLE_START else "lower" if y > MIDDLE_END else "",
        "left" if x < MIDDLE_START else "right" if x > MIDDLE_END else "",
    ]
    return " ".join(filter(None, parts)) or "middle"


@torch.no_grad()
def encode_picture(matcher: Matcher, inputs: Inputs, image: Image.Image) -> EncodedPicture:
    """Encode a picture that is not in a collection.

    Raises:
        UserError: when the matcher needs features stored with a collection.
    """
    encoded = _encoded(matcher, inputs, inputs.images.images([image.convert("RGB")]))
    count = 1 if encoded.parts is None else encoded.parts.shape[1]
    return EncodedPicture(encoded, inputs.images.part_boxes(image.size, count))


@torch.no_grad()
def encode_collection_image(matcher: Matcher, inputs: Inputs, collection: Collection, id: str) -> EncodedPicture:
    """Encode an image of a collection, from its stored features if the matcher needs them.

    Raises:
        UserError: when the collection does not have the image or the features.
    """
    row = image_row(collection, id)
    name = inputs.images.stored_name
    if name is None:
        return encode_picture(matcher, inputs, collection.pictures.open(row))
    rows = inputs.images.load(collection.visuals(np.array([row]))).take(np.zeros(1, dtype=np.int64))
    return EncodedPicture(_encoded(matcher, inputs, rows), stored_part_boxes(name, collection, row))


def image_row(collection: Collection, id: str) -> int:
    """Return the row of an image.

    Raises:
        UserError: when no image has this id.
    """
    ids = collection.column("images", "id")
    if id not in ids:
        raise UserError(
            f"{collection.folder} has no image '{id}'; an example of an id is '{ids[0]}'"
            if ids
            else f"{collection.folder} has no images"
        )
    return ids.index(id)


def _encoded(matcher: Matcher, inputs: Inputs, rows: Tensor) -> Encoded:
    device = device_of(matcher)
    return matcher.eval().encode_images(inputs.images.finish(rows.to(device)))


@torch.no_grad()
def attention_to_sentence(
    matcher: Matcher, inputs: Inputs, picture: EncodedPicture, sentence: str
) -> AttentionShares | None:
    """Return the attention between a picture and the words of a sentence, split at white space.

    None for a matcher without attention, and for a text input whose tokens have no known position.

    See also: ``Searcher.explain``, for a picture of a library.
    """
    tokens = word_parts(inputs, sentence) if matcher.attends else None
    if tokens is None:
        return None
    device = device_of(matcher)
    words, mask = inputs.texts.texts([with_single_spaces(sentence)])
    texts = matcher.eval().encode_texts(words.to(device), mask.to(device))
    return word_attention(matcher, picture, texts, tokens)


def with_single_spaces(sentence: str) -> str:
    """Return the sentence with single spaces; the number of words stays the same."""
    return " ".join(sentence.split())


def word_parts(inputs: Inputs, sentence: str) -> WordParts | None:
    """Return the word of each token of a sentence; None where the text input does not know it."""
    plain = with_single_spaces(sentence)
    parts, words = inputs.texts.token_spans(plain), whitespace_word_spans(plain)
    return None if parts is None else WordParts(len(words), token_word_indices(parts, words))


@torch.no_grad()
def word_attention(matcher: Matcher, picture: EncodedPicture, texts: Encoded, tokens: WordParts) -> AttentionShares:
    """Return the attention of a matcher by whole words.

    The attention of a word is the mean over its tokens; the attention to a word is the sum over its tokens. Nothing is
    normalized again, so the attention of a region to special tokens stays theirs.

    Args:
        texts: encoding of the sentence, on the matcher's device.
        tokens: output of ``word_parts`` for the sentence.
    """
    from_words, from_regions = (
        shares[0].float().cpu().numpy()
        for shares in matcher.attention_weights(picture.encoded.to(texts.vectors.device), texts)
    )
    mask, boxes = picture.encoded.mask, picture.boxes
    real = np.ones(len(from_words), dtype=bool) if mask is None else mask[0].cpu().numpy()
    if boxes is not None and len(boxes) == len(real):
        boxes = boxes[real]
    belongs = np.zeros((tokens.words, from_words.shape[1]), dtype=np.float32)
    for part, word in enumerate(tokens.owners):
        if word is not None:
            belongs[word, part] = 1
    mean = belongs / np.maximum(belongs.sum(1, keepdims=True), 1)
    # Boxes that differ in number from the regions belong to something else.
    known = boxes if boxes is not None and len(boxes) == real.sum() else None
    return AttentionShares(known, mean @ from_words[real].T, from_regions[real] @ belongs.T, matcher.attends)
