"""A matcher's encoders and its score, for the few texts and pictures of a query."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from calligram.errors import NotFiniteError
from calligram.evaluation.attention import Attended, Seen, attended, one_spaced, words_and_parts
from calligram.features.unknown_words import UnknownWords
from calligram.features.word_spans import unread
from calligram.models.matcher import Encoded, unit
from calligram.models.stored import Stored
from calligram.search.item_places import ItemPlaces
from calligram.search.library import Item

Floats = NDArray[np.float32]


class QueryEncoder:
    """Encodes queries and scores them. Nothing in it changes after it was made, so threads may share it."""

    def __init__(self, stored: Stored, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        self.fingerprint = stored.fingerprint
        self._matcher, self._inputs = stored.to(self.device).matcher.eval(), stored.inputs
        self._unknown = UnknownWords(stored.inputs.texts)
        self._places = ItemPlaces(stored.inputs.images)
        # Tokenizers of transformers set their padding at every call and refuse two calls at a time.
        self._tokenizing = threading.Lock()

    @torch.inference_mode()
    def texts(self, strings: Sequence[str]) -> Encoded:
        """Encode texts."""
        with self._tokenizing:
            words, mask = self._inputs.texts.texts(list(strings))
        return self._matcher.encode_texts(words.to(self.device), mask.to(self.device))

    def unknown(self, text: str) -> list[str]:
        """Words of a text that the matcher has never seen; none for one that reads pieces of words."""
        return self._unknown(text)

    def unread(self, text: str) -> int:
        """Words at a text's end that the matcher reads no more."""
        with self._tokenizing:
            return unread(self._inputs.texts, text)

    @torch.inference_mode()
    def attended(self, image: Encoded, item: Item, text: str) -> Attended | None:
        """Who looks where between what a library keeps of an item and a text; None for a matcher without attention."""
        if not self._matcher.attends or image.parts is None:
            return None
        with self._tokenizing:
            spelt = words_and_parts(self._inputs, text)
        if spelt is None:
            return None
        seen = Seen(_on(image, self.device), self._places.of(item, image.parts.shape[1]))
        return attended(self._matcher, seen, self.texts([one_spaced(text)]), spelt)

    @torch.inference_mode()
    def images(self, images: Sequence[Image.Image]) -> Encoded:
        """Encode pictures."""
        rows = self._inputs.images.images(list(images)).to(self.device)
        return self._matcher.encode_images(self._inputs.images.finish(rows))

    @torch.inference_mode()
    def scores(self, images: Encoded, texts: Encoded) -> Floats:
        """All scores (I, T)."""
        scores = self._matcher.score(_on(images, self.device), _on(texts, self.device)).float().cpu().numpy()
        if not np.isfinite(scores).all():
            raise NotFiniteError("the matcher's scores are not finite; it cannot be searched with")
        return np.ascontiguousarray(scores)


def unit_vectors(encoded: Encoded) -> Floats:
    """The vectors at length one."""
    vectors = unit(encoded.vectors).cpu().numpy()
    if not np.isfinite(vectors).all():
        raise NotFiniteError("the matcher's vectors are not finite; it cannot be searched with")
    return np.ascontiguousarray(vectors, dtype=np.float32)


def _on(encoded: Encoded, device: torch.device) -> Encoded:
    """The same on a device, in float32 where parts were kept in half of that."""
    vectors, parts, mask = encoded.to(device)
    return Encoded(vectors.float(), None if parts is None else parts.float(), mask)
