"""Encodings and score matrix of a pairing."""

from __future__ import annotations

import contextlib
import math
import tempfile
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.data.pairing import Pairing
from calligram.device import device_of
from calligram.errors import UserError
from calligram.features.inputs import ImageRows, Inputs, TextRows
from calligram.models.matcher import Encoded, Matcher, stack
from calligram.progress import Track, silent

Precision = Literal["fp32", "bf16"]


def check_precision(matcher: Matcher, precision: Precision) -> None:
    """Refuse lower precision for a matcher that scores by cosines.

    Raises:
        UserError: for bfloat16 and such a matcher: with eight bits many scores would be equal.
    """
    if precision != "fp32" and not matcher.scoring.reranks:
        raise UserError(
            f"--precision {precision} is for matchers that score pairs by attention; this one scores by the cosine of "
            "two vectors, which is fast already; leave the option out"
        )


def score_precision(device: torch.device, precision: Precision) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which scores are computed: autocast as in training, or none."""
    return contextlib.nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)


Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

MAX_MEMORY_BYTES = 1 << 30
"""largest score matrix in memory; a larger one is kept in a temporary file"""


class EncodedPairing(NamedTuple):
    """The images and texts of a pairing, encoded by a matcher."""

    images: Encoded
    texts: Encoded

    def select(self, images: Ints, texts: Ints) -> EncodedPairing:
        """Return some images and some texts."""
        one, two = (torch.from_numpy(rows).to(self.images.vectors.device) for rows in (images, texts))
        return EncodedPairing(self.images.rows(one), self.texts.rows(two))


class LoadedPairing(NamedTuple):
    """The images and texts of a pairing as prepared inputs, for encoding them several times."""

    images: ImageRows
    texts: TextRows


def load_pairing(inputs: Inputs, pairing: Pairing, track: Track = silent) -> LoadedPairing:
    """Prepare the inputs of a pairing: decode its images and tokenise its texts."""
    return LoadedPairing(
        inputs.images.load(pairing.visuals, track),
        inputs.texts.load(pairing.texts.strings, pairing.visuals.pictures.cache, track),
    )


def _device(matcher: Matcher) -> torch.device:
    return device_of(matcher)


@torch.no_grad()
def encode_images(
    matcher: Matcher, inputs: Inputs, rows: ImageRows, *, batch: int = 128, track: Track = silent
) -> Encoded:
    """Encode images in batches; encodings stay on the matcher's device."""
    device = _device(matcher)
    chunks = np.array_split(np.arange(len(rows)), max(1, -(-len(rows) // batch)))
    pieces = [
        matcher.encode_images(inputs.images.finish(rows.take(chunk).to(device)))
        for chunk in track(chunks, "encoding images", len(chunks))
    ]
    return stack(pieces)


@torch.no_grad()
def encode_texts(matcher: Matcher, rows: TextRows, *, batch: int = 512, track: Track = silent) -> Encoded:
    """Encode texts in batches of similar length, to avoid padding; the result is in the original order."""
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
    """Encode the images and texts of a pairing."""
    return EncodedPairing(
        encode_images(matcher, inputs, loaded.images, track=track), encode_texts(matcher, loaded.texts, track=track)
    )


def score_array(shape: tuple[int, ...], budget: int = MAX_MEMORY_BYTES) -> Floats:
    """Return an array for scores, in a temporary file if it is larger than ``budget`` bytes."""
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
    budget: int = MAX_MEMORY_BYTES,
    precision: Precision = "fp32",
    track: Track = silent,
) -> Floats:
    """Return all scores (I, T), computed for ``rows`` images at once."""
    scores = score_array((len(encoded.images.vectors), len(encoded.texts.vectors)), budget)
    starts = range(0, len(scores), rows)
    for start in track(starts, "scoring", len(starts)):
        part = encoded.images.rows(slice(start, start + rows))
        with score_precision(part.vectors.device, precision):
            found = matcher.score(part, encoded.texts)
        scores[start : start + rows] = found.float().cpu().numpy()
    return scores
