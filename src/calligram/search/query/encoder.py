"""A matcher's encoders and its score, for the few texts and pictures of a query."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from calligram.data.collection import MANIFEST, Collection
from calligram.errors import NotFiniteError, UserError
from calligram.evaluation.attention import (
    AttentionShares,
    EncodedPicture,
    attended,
    one_spaced,
    row_of,
    words_and_parts,
)
from calligram.evaluation.word_matching import UnknownWords
from calligram.features.images.region_input import grid_part_boxes, stored_part_boxes
from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import ImageInput
from calligram.features.texts.vocabulary import count_truncated_words
from calligram.models.load import StoredMatcher
from calligram.models.matcher import Encoded
from calligram.search.library.library import Item
from calligram.search.library.manifest import Manifest
from calligram.search.library.matchers import load_recorded
from calligram.vectors import unit_length

# Where the regions of a library's pictures lie that its matcher kept.


class ItemPlaces:
    """Finds them; collections are opened once. Any number of threads may use it."""

    def __init__(self, images: ImageInput) -> None:
        self._input = images
        self._opened: dict[str, tuple[int, Collection]] = {}
        self._opening = threading.Lock()

    def of(self, item: Item, count: int) -> Floats | None:
        """The boxes of an item's ``count`` regions, as ``Seen`` has them; None where they are not known.

        Cells follow from the picture's size. Boxes of stored features are read from the collection that the item came
        from, if it is still there.
        """
        if not isinstance(self._input, StoredInput):
            return grid_part_boxes(self._input, (item.width, item.height), count)
        try:
            collection = self._collection(str(item.metadata["source"]))
            return stored_part_boxes(self._input, collection, row_of(collection, str(item.metadata["path"])))
        except (UserError, OSError):  # moved or changed since: what words weigh can be said all the same
            return None

    def _collection(self, root: str) -> Collection:
        """The collection as it is now: regions may have been added."""
        stamp = (Path(root) / MANIFEST).stat().st_mtime_ns
        with self._opening:
            known = self._opened.get(root)
            if known is None or known[0] != stamp:
                known = self._opened[root] = stamp, Collection.open(root)
            return known[1]


Floats = NDArray[np.float32]


class QueryEncoder:
    """Encodes queries and scores them. Nothing in it changes after it was made, so threads may share it."""

    def __init__(self, stored: StoredMatcher, device: str | torch.device = "cpu") -> None:
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
            return count_truncated_words(self._inputs.texts, text)

    @torch.inference_mode()
    def attended(self, image: Encoded, item: Item, text: str) -> AttentionShares | None:
        """Who looks where between what a library keeps of an item and a text; None for a matcher without attention."""
        if not self._matcher.attends or image.parts is None:
            return None
        with self._tokenizing:
            spelt = words_and_parts(self._inputs, text)
        if spelt is None:
            return None
        seen = EncodedPicture(_on(image, self.device), self._places.of(item, image.parts.shape[1]))
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


def unit_vectors(encoded: Encoded) -> Floats:
    """The vectors at length one."""
    vectors = unit_length(encoded.vectors).cpu().numpy()
    if not np.isfinite(vectors).all():
        raise NotFiniteError("the matcher's vectors are not finite; it cannot be searched with")
    return np.ascontiguousarray(vectors, dtype=np.float32)


def _on(encoded: Encoded, device: torch.device) -> Encoded:
    """The same on a device, in float32 where parts were kept in half of that."""
    vectors, parts, mask = encoded.to(device)
    return Encoded(vectors.float(), None if parts is None else parts.float(), mask)
