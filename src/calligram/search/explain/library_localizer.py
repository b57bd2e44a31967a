"""Phrase localization in the pictures of a library, with a cache of encoded proposals."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from calligram.data.pictures import PictureError, decode
from calligram.errors import UserError
from calligram.evaluation.word_matching import UnknownWords
from calligram.features.regions.proposers import load_proposer
from calligram.files import content_hash
from calligram.models.catalog import StoredMatcher
from calligram.search.explain.localize import (
    EncodedProposals,
    LocatedPhrase,
    encode_proposals,
    localize_sentence,
    rank_boxes,
    require_region_input,
    trimmed_span,
)
from calligram.search.library.library import Library
from calligram.search.library.manifest import MatcherRecord
from calligram.search.library.matchers import load_recorded

CACHED_PICTURES = 32
"""pictures whose proposals are cached: about 200 boxes each, with 2 kB for the 512 numbers of a box"""


class ProposedPicture(NamedTuple):
    """The proposals and the size of a picture."""

    proposals: EncodedProposals
    width: int
    height: int


@dataclass(frozen=True)
class LocatedPhrases:
    """The noun phrases of a text and their boxes in a picture."""

    phrases: tuple[LocatedPhrase, ...]
    """in the order of the text; a phrase without a known content word has no boxes"""
    width: int
    """of the upright picture, in pixels"""
    height: int
    proposals: int
    """number of boxes that were ranked"""
    unknown_words: tuple[str, ...] = ()
    """words of the phrases that are not in the localizer's vocabulary"""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """seconds of ``look`` (proposing and encoding boxes) and ``rank``"""


class LibraryLocalizer:
    """Finds phrases in pictures. Any number of threads may use it."""

    def __init__(self, stored: StoredMatcher, device: str | torch.device = "cpu") -> None:
        """Args:
        stored: a matcher of regions and phrases.
        device: where proposals are encoded.

        Raises:
            UserError: for a matcher of whole pictures, and when the detector that proposes its regions is missing.
        """
        regions = require_region_input(stored.inputs)
        self.model = MatcherRecord(stored.fingerprint, stored.source)
        self._matcher, self._inputs = stored.matcher.to(device).eval(), stored.inputs
        self._proposer = load_proposer(regions.proposals, regions.top, device)
        self._unknown = UnknownWords(stored.inputs.texts)
        self._cache: OrderedDict[str, Future[ProposedPicture]] = OrderedDict()
        self._lock, self._rank_lock = threading.Lock(), threading.Lock()

    @classmethod
    def open(cls, library: Library, device: str | torch.device = "cpu") -> LibraryLocalizer:
        """Open the localizer that a library names.

        Raises:
            UserError: when it has none, or its localizer is missing or has changed.
        """
        model = library.manifest.localizer
        if model is None:
            raise no_localizer()
        return cls(load_recorded(library.folder, "localizer", model), device)

    def locate(self, library: Library, id: str, text: str, k: int = 3) -> LocatedPhrases:
        """The ``k`` best boxes for each noun phrase of ``text`` in an item's picture.

        Raises:
            UserError: for an empty text or an unknown item, and when its picture is missing or damaged.
        """
        if not text.strip():
            raise UserError("the text is empty; give a phrase or a sentence, such as 'a dog on the beach'")
        start = time.perf_counter()
        picture = self._picture(library, id)
        encoded = time.perf_counter()
        phrases = tuple(self._without_unknown(located) for located in self._rank(picture.proposals, text, k))
        seconds = {"look": encoded - start, "rank": time.perf_counter() - encoded}
        unknown = tuple(self._unknown.of_all(located.text for located in phrases))
        count = len(picture.proposals.boxes)
        return LocatedPhrases(phrases, picture.width, picture.height, count, unknown, seconds)

    def _rank(self, proposals: EncodedProposals, text: str, k: int) -> list[LocatedPhrase]:
        # Tokenizers of transformers refuse two calls at a time, and ranking takes milliseconds.
        with self._rank_lock:
            if self._inputs.chunker is not None:
                return localize_sentence(self._matcher, self._inputs, proposals, text, k)
            span = trimmed_span(text)
            phrase = text[span.start : span.end]
            return [LocatedPhrase(span, phrase, rank_boxes(self._matcher, self._inputs, proposals, [phrase], k)[0])]

    def _without_unknown(self, located: LocatedPhrase) -> LocatedPhrase:
        """The phrase, without boxes if none of its content words is known, because its boxes would be arbitrary."""
        return located._replace(hits=[]) if self._unknown.lost(located.text) else located

    def _picture(self, library: Library, id: str) -> ProposedPicture:
        """The proposals of an item's picture, cached by a hash of its content."""
        content = library.picture(id)
        key = content_hash(content, 16)
        with self._lock:
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
            else:
                mine = self._cache[key] = Future()
                while len(self._cache) > CACHED_PICTURES:
                    self._cache.popitem(last=False)
        if known is not None:
            return known.result()  # waits for the thread that computes it
        try:
            mine.set_result(self._propose(content, id))
        except BaseException as error:
            with self._lock:
                self._cache.pop(key, None)
            mine.set_exception(error)
        return mine.result()

    def _propose(self, content: bytes, id: str) -> ProposedPicture:
        try:
            picture = decode(content)
        except PictureError as error:
            raise UserError(f"the picture of item {id} cannot be read: {error}") from error
        return ProposedPicture(
            encode_proposals(self._matcher, self._inputs, picture, self._proposer), picture.width, picture.height
        )


def no_localizer() -> UserError:
    """The error for a library without a localizer."""
    return UserError(
        "this library has no localizer, so phrases cannot be found within its pictures; add one with "
        '"calligram index ... --localizer RUN", with a RUN of "calligram train two-branch-phrases"'
    )
