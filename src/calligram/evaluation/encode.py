"""Running a matcher over a pairing: encodings, and scores in tiles."""

from __future__ import annotations

import contextlib
import math
import tempfile
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.features.inputs import ImageRows, Inputs, TextRows
from calligram.models.matcher import Encoded, Matcher, stack
from calligram.progress import Track, silent

# Scores in lower precision, where a score is more than one matrix product.

Precision = Literal["fp32", "bf16"]


def check_precision(matcher: Matcher, precision: Precision) -> None:
    """Refuse what would change nothing but the ties.

    Raises:
        UserError: for bfloat16 and a matcher that scores by the cosine: rounded to eight bits, many would be equal.
    """
    if precision != "fp32" and not matcher.reranks:
        raise UserError(
            f"--precision {precision} is for matchers that compare each pair by attention, and this one scores by the "
            "cosine of two vectors, which costs next to nothing; leave it out"
        )


def lowered(device: torch.device, precision: Precision) -> contextlib.AbstractContextManager[Any]:
    """What scores are computed under: autocast as in training, or nothing. Encodings stay in float32."""
    return contextlib.nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)


Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

SCORE_BYTES = 1 << 30
"""A score matrix larger than this is kept in a temporary file instead of memory."""


class EncodedPairing(NamedTuple):
    """Both sides of a pairing as a matcher sees them."""

    images: Encoded
    texts: Encoded

    def select(self, images: Ints, texts: Ints) -> EncodedPairing:
        """Some of both."""
        one, two = (torch.from_numpy(rows).to(self.images.vectors.device) for rows in (images, texts))
        return EncodedPairing(self.images.rows(one), self.texts.rows(two))


class LoadedPairing(NamedTuple):
    """Both sides of a pairing as prepared inputs, for encoding them more than once."""

    images: ImageRows
    texts: TextRows


def load_pairing(inputs: Inputs, pairing: Pairing, track: Track = silent) -> LoadedPairing:
    """Decode images and encode words, once."""
    return LoadedPairing(
        inputs.images.load(pairing.visuals, track),
        inputs.texts.load(pairing.texts.strings, pairing.visuals.pictures.cache, track),
    )


def _device(matcher: Matcher) -> torch.device:
    return next(matcher.parameters()).device


@torch.no_grad()
def encode_images(
    matcher: Matcher, inputs: Inputs, rows: ImageRows, *, batch: int = 128, track: Track = silent
) -> Encoded:
    """Encode each image once. Encodings stay on the matcher's device."""
    device = _device(matcher)
    chunks = np.array_split(np.arange(len(rows)), max(1, -(-len(rows) // batch)))
    pieces = [
        matcher.encode_images(inputs.images.finish(rows.take(chunk).to(device)))
        for chunk in track(chunks, "encoding images", len(chunks))
    ]
    return stack(pieces)


@torch.no_grad()
def encode_texts(matcher: Matcher, rows: TextRows, *, batch: int = 512, track: Track = silent) -> Encoded:
    """Encode texts in order of length, so that little of a batch is padding, and put them back in order."""
    device = _device(matcher)
    order = np.argsort(rows.lengths, kind="stable")
    chunks = np.array_split(order, max(1, -(-len(order) // batch)))
    pieces = []
    for chunk in track(chunks, "encoding texts", len(chunks)):
        words, mask = rows.take(chunk)
        pieces.append(matcher.encode_texts(words.to(device), mask.to(device)))
    back = torch.from_numpy(np.argsort(order, kind="stable")).to(device)
    return stack(pieces).rows(back)


def encode_pairing(matcher: Matcher, inputs: Inputs, loaded: LoadedPairing, track: Track = silent) -> EncodedPairing:
    """Encode both sides."""
    return EncodedPairing(
        encode_images(matcher, inputs, loaded.images, track=track), encode_texts(matcher, loaded.texts, track=track)
    )


def room_for(shape: tuple[int, ...], budget: int = SCORE_BYTES) -> Floats:
    """An array for scores, in a temporary file where they would take too much memory."""
    if math.prod(shape) * 4 <= budget:
        return np.empty(shape, dtype=np.float32)
    with tempfile.TemporaryFile() as file:  # the mapping keeps the unnamed file alive
        return np.memmap(file, dtype=np.float32, mode="w+", shape=shape)


@torch.no_grad()
def score_matrix(
    matcher: Matcher,
    encoded: EncodedPairing,
    *,
    rows: int = 256,
    budget: int = SCORE_BYTES,
    precision: Precision = "fp32",
    track: Track = silent,
) -> Floats:
    """All scores (I, T), computed ``rows`` images at a time."""
    scores = room_for((len(encoded.images.vectors), len(encoded.texts.vectors)), budget)
    starts = range(0, len(scores), rows)
    for start in track(starts, "scoring", len(starts)):
        part = encoded.images.rows(slice(start, start + rows))
        with lowered(part.vectors.device, precision):
            found = matcher.score(part, encoded.texts)
        scores[start : start + rows] = found.float().cpu().numpy()
    return scores
