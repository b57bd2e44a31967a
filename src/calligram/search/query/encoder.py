"""The encoders and the score of a matcher, for the texts and pictures of a query."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from calligram.errors import NotFiniteError, UserError, command
from calligram.features.texts.vocabulary import count_truncated_words
from calligram.models.catalog import StoredMatcher, load_matcher
from calligram.models.matcher import Encoded
from calligram.search.library.manifest import Manifest, MatcherRecord
from calligram.text import tokenise
from calligram.vectors import unit_length

Floats = NDArray[np.float32]


class QueryEncoder:
    """Encodes queries and scores them. It never changes, so threads may share it."""

    def __init__(self, stored: StoredMatcher, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        self.fingerprint = stored.fingerprint
        self.matcher, self.inputs = stored.to(self.device).matcher.eval(), stored.inputs
        # Tokenizers of transformers set their padding at every call and refuse two calls at a time.
        self.tokenizer_lock = threading.Lock()

    @torch.inference_mode()
    def texts(self, strings: Sequence[str]) -> Encoded:
        """Encode texts."""
        with self.tokenizer_lock:
            words, mask = self.inputs.texts.texts(list(strings))
        return self.matcher.encode_texts(words.to(self.device), mask.to(self.device))

    def unknown_words(self, text: str) -> list[str]:
        """Words of a text that the matcher has no token for; none for a matcher that splits words into pieces."""
        return [word for word in tokenise(text) if not self.inputs.texts.is_known(word)]

    def truncated_words(self, text: str) -> int:
        """Number of words at the end of a text that are beyond the longest text the matcher reads."""
        with self.tokenizer_lock:
            return count_truncated_words(self.inputs.texts, text)

    @torch.inference_mode()
    def images(self, images: Sequence[Image.Image]) -> Encoded:
        """Encode pictures."""
        rows = self.inputs.images.images(list(images)).to(self.device)
        return self.matcher.encode_images(self.inputs.images.finish(rows))

    @torch.inference_mode()
    def scores(self, images: Encoded, texts: Encoded) -> Floats:
        """All scores (I, T) of images and texts."""
        scores = self.matcher.score(on_device(images, self.device), on_device(texts, self.device)).float().cpu().numpy()
        if not np.isfinite(scores).all():
            raise NotFiniteError("the matcher's scores are not finite; it cannot be searched with")
        return np.ascontiguousarray(scores)


def query_encoders(
    matcher: StoredMatcher, reranker: StoredMatcher | None, device: str | torch.device = "cpu"
) -> tuple[QueryEncoder, QueryEncoder | None]:
    """Encoders of a matcher and a reranker; one encoder where both are the same matcher."""
    first = QueryEncoder(matcher, device)
    if reranker is None or reranker.fingerprint == matcher.fingerprint:
        return first, None if reranker is None else first
    return first, QueryEncoder(reranker, device)


def load_encoders(
    folder: Path, manifest: Manifest, device: str | torch.device = "cpu"
) -> tuple[QueryEncoder, QueryEncoder | None]:
    """The matcher and the reranker that a library names.

    Raises:
        UserError: when one is missing, or has changed since the library was indexed.
    """
    first, second = manifest.matcher, manifest.reranker
    matcher = load_recorded(folder, "matcher", first)
    if second is None or second.fingerprint == first.fingerprint:
        return query_encoders(matcher, None if second is None else matcher, device)
    return query_encoders(matcher, load_recorded(folder, "reranker", second), device)


def load_recorded(library: Path, role: str, model: MatcherRecord) -> StoredMatcher:
    """Load a matcher that a library names.

    Args:
        library: its folder.
        role: matcher, reranker or localizer.
        model: the library's record of it.

    Raises:
        UserError: when it is missing, or has changed since the library was indexed.
    """
    try:
        stored = load_matcher(model.source)
    except UserError as error:
        raise UserError(f"the {role} of {library} cannot be loaded: {error}") from error
    if stored.fingerprint != model.fingerprint:
        own: tuple[object, ...] = (model.source, "SOURCE", "--out", library)
        if role == "reranker":
            own = ("RUN", "SOURCE", "--out", library, "--reranker", model.source)
        what_to_do = "rebuild it with " + command("calligram", "index", *own, "--rebuild")
        if role == "localizer":
            what_to_do = "use the new one with " + command(
                "calligram", "index", "RUN", "SOURCE", "--out", library, "--localizer", model.source
            )
        raise UserError(
            f"{library} was indexed with {role} {model.fingerprint[:8]}, and {model.source} is now "
            f"{stored.fingerprint[:8]}; {what_to_do}"
        )
    return stored


def unit_vectors(encoded: Encoded) -> Floats:
    """The vectors, scaled to unit length."""
    vectors = unit_length(encoded.vectors).cpu().numpy()
    if not np.isfinite(vectors).all():
        raise NotFiniteError("the matcher's vectors are not finite; it cannot be searched with")
    return np.ascontiguousarray(vectors, dtype=np.float32)


def on_device(encoded: Encoded, device: torch.device) -> Encoded:
    """Encodings on a device, in float32; a library stores parts in float16."""
    vectors, parts, mask = encoded.to(device)
    return Encoded(vectors.float(), None if parts is None else parts.float(), mask)
