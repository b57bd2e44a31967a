"""Phrases in the pictures of a library: its localizer, which remembers the last few pictures it looked at."""

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
from calligram.models.load import StoredMatcher
from calligram.search.explain.localize import (
    EncodedProposals,
    LocatedPhrase,
    localize_sentence,
    look,
    rank,
    region_side,
    whole,
)
from calligram.search.library.library import Library
from calligram.search.library.manifest import MatcherRecord
from calligram.search.query.encoder import load_recorded

CACHED_PICTURES = 32
"""pictures whose proposals are kept: some 200 boxes each, at 2 kB a box for 512 numbers"""


class ProposedPicture(NamedTuple):
    """A picture that was looked at."""

    looked: EncodedProposals
    width: int
    height: int


@dataclass(frozen=True)
class LocatedPhrases:
    """Where the noun phrases of a text are in a picture."""

    phrases: tuple[LocatedPhrase, ...]
    """in the order of the text; a phrase of which no telling word is known has no boxes"""
    width: int
    """of the picture, upright; boxes are in its pixels"""
    height: int
    proposals: int
    """boxes that were compared"""
    unknown: tuple[str, ...] = ()
    """words of the phrases that the localizer has never seen"""
    timings: Mapping[str, float] = field(default_factory=dict)
    """seconds of ``look`` and ``rank``"""


class LibraryLocalizer:
    """Finds phrases in pictures. Any number of threads may use it: what it remembers changes no answer."""

    def __init__(self, stored: StoredMatcher, device: str | torch.device = "cpu") -> None:
        """Args:
        stored: a matcher of regions and phrases.

        Raises:
            UserError: when it sees whole pictures, or the detector that proposes its regions is not there.
        """
        side = region_side(stored.inputs)
        self.model = MatcherRecord(stored.fingerprint, stored.source)
        self._matcher, self._inputs = stored.matcher.to(device).eval(), stored.inputs
        self._proposer = load_proposer(side.proposals, side.top, device)
        self._unknown = UnknownWords(stored.inputs.texts)
        self._seen: OrderedDict[str, Future[ProposedPicture]] = OrderedDict()
        self._lock, self._ranking = threading.Lock(), threading.Lock()

    @classmethod
    def open(cls, library: Library, device: str | torch.device = "cpu") -> LibraryLocalizer:
        """The localizer that a library was indexed with.

        Raises:
            UserError: when it has none, or it is not there or no longer what it was.
        """
        model = library.manifest.localizer
        if model is None:
            raise no_localizer()
        return cls(load_recorded(library.folder, "localizer", model), device)

    def locate(self, library: Library, id: str, text: str, k: int = 3) -> LocatedPhrases:
        """The ``k`` best boxes for each noun phrase of ``text`` in an item's picture.

        Raises:
            UserError: when the text is empty, the item is not known, or its picture is gone or broken.
        """
        if not text.strip():
            raise UserError("the text is empty; give a phrase or a sentence, such as 'a dog on the beach'")
        began = time.perf_counter()
        seen = self._look(library, id)
        looked = time.perf_counter()
        phrases = tuple(self._known(located) for located in self._rank(seen.looked, text, k))
        times = {"look": looked - began, "rank": time.perf_counter() - looked}
        unknown = tuple(self._unknown.of_all(located.text for located in phrases))
        return LocatedPhrases(phrases, seen.width, seen.height, len(seen.looked.boxes), unknown, times)

    def _rank(self, looked: EncodedProposals, text: str, k: int) -> list[LocatedPhrase]:
        # Tokenizers of transformers refuse two calls at a time, and ranking takes milliseconds.
        with self._ranking:
            if self._inputs.chunker is not None:
                return localize_sentence(self._matcher, self._inputs, looked, text, k)
            span = whole(text)
            phrase = text[span.start : span.end]
            return [LocatedPhrase(span, phrase, rank(self._matcher, self._inputs, looked, [phrase], k)[0])]

    def _known(self, located: LocatedPhrase) -> LocatedPhrase:
        """Without boxes where no known word says what is meant: they would be any."""
        return located._replace(hits=[]) if self._unknown.lost(located.text) else located

    def _look(self, library: Library, id: str) -> ProposedPicture:
        """The picture's proposals; known by its content, so that a picture that has changed is looked at again."""
        content = library.picture(id)
        key = content_hash(content, 16)
        with self._lock:
            known = self._seen.get(key)
            if known is not None:
                self._seen.move_to_end(key)
            else:
                mine = self._seen[key] = Future()
                while len(self._seen) > CACHED_PICTURES:
                    self._seen.popitem(last=False)
        if known is not None:
            return known.result()  # another thread may be at it still
        try:
            mine.set_result(self._look_at(content, id))
        except BaseException as error:
            with self._lock:
                self._seen.pop(key, None)
            mine.set_exception(error)
        return mine.result()

    def _look_at(self, content: bytes, id: str) -> ProposedPicture:
        try:
            picture = decode(content)
        except PictureError as error:
            raise UserError(f"the picture of item {id} cannot be read: {error}") from error
        return ProposedPicture(
            look(self._matcher, self._inputs, picture, self._proposer), picture.width, picture.height
        )


def no_localizer() -> UserError:
    """Say how a library gets one."""
    return UserError(
        "this library has no localizer, so phrases cannot be found within its pictures; give it one with "
        '"calligram index ... --localizer RUN", RUN being trained by "calligram train two-branch-phrases"'
    )
