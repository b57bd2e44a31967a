"""Where captions are written: a collection, the images proposed for it, and what was written since."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from calligram.data.add_captions import NewCaption, add_new_captions, clean_caption
from calligram.data.collection import Collection
from calligram.data.pictures import PictureError
from calligram.errors import UserError
from calligram.evaluation.suggest import Suggestion, suggest_images
from calligram.search.indexing.thumbnails import thumbnail
from calligram.search.library.library import Library
from calligram.search.library.matchers import load_recorded
from calligram.serve.guard import RefusedRequest

log = logging.getLogger("calligram.serve")
T = TypeVar("T")

ROUND = 50
"""images that are proposed at a time"""


class SuggestionRound(NamedTuple):
    """What was proposed, or how far that has come."""

    state: Literal["working", "ready", "failed"]
    chosen: tuple[Suggestion, ...] = ()
    captioned: int = 0
    """images that have captions now, of those that training learns from"""
    left: int = 0
    """images that have none"""
    said: str = ""
    """what is being done, or what went wrong"""


class CaptionDesk:
    """Proposes images of a collection in a thread of its own, and writes their captions down."""

    def __init__(self, folder: Path) -> None:
        self._collection = Collection.open(folder)
        self._rows = {str(name): row for row, name in enumerate(self._collection.column("images", "id"))}
        self._lock = threading.Lock()
        self._round: SuggestionRound | None = None
        self._working: threading.Thread | None = None

    def proposed(self, library: Library) -> SuggestionRound:
        """The images of this round that have no caption yet; the first to ask begins a round."""
        with self._lock:
            now = self._round
        if now is None:
            return self.begin(library)
        if now.state != "ready":
            return now
        try:
            captioned = set(self._open().numbers("matches", "image").tolist())
        except UserError as error:
            raise _unusable(error) from None
        rest = tuple(s for s in now.chosen if s.row not in captioned)
        done = len(now.chosen) - len(rest)
        return now._replace(chosen=rest, captioned=now.captioned + done, left=now.left - done)

    def begin(self, library: Library) -> SuggestionRound:
        """Propose anew, with what was captioned meanwhile; nothing where that is under way."""
        with self._lock:
            if self._working is None or not self._working.is_alive():
                self._round = SuggestionRound("working", said="loading the matcher")
                self._working = threading.Thread(target=self._propose, args=(library,), daemon=True, name="suggest")
                self._working.start()
            assert self._round is not None
            return self._round

    def write(self, image: str, text: str) -> bool:
        """Add a caption; False where the image has it already.

        Raises:
            UserError: when it is empty or too long.
            Refused: when there is no such image, or the collection cannot be read any more.
        """
        self._row(image)
        text = clean_caption(text)
        try:
            added = add_new_captions(self._collection.folder, [NewCaption(image, text)])
        except UserError as error:  # the image is known and the caption is one, so it is the collection
            raise _unusable(error) from None
        with self._lock:
            self._collection = added.collection
        return added.captions > 0

    def picture(self, image: str) -> bytes:
        """A picture of the collection, small, as JPEG."""
        row = self._row(image)
        try:
            return thumbnail(self._collection.pictures.open(row), self._collection.pictures.read(row))
        except PictureError as error:
            raise RefusedRequest(404, str(error)) from None

    def _row(self, image: str) -> int:
        if image not in self._rows:
            raise RefusedRequest(404, f"the collection has no image {image!r}")
        return self._rows[image]

    def _open(self) -> Collection:
        """The collection as it is now; other programs may write into it too."""
        now = Collection.open(self._collection.folder)
        with self._lock:
            if now.manifest.get("revision") != self._collection.manifest.get("revision"):
                self._collection = now
            return self._collection

    def _propose(self, library: Library) -> None:
        try:
            stored = load_recorded(library.folder, "matcher", library.manifest.matcher)
            found = suggest_images(stored.matcher, stored.inputs, self._open(), ROUND, track=self._track)
            ended = SuggestionRound("ready", found.chosen, found.captioned, found.candidates)
        except UserError as error:
            ended = SuggestionRound("failed", said=str(error))
        except Exception:
            log.exception("images could not be proposed")
            ended = SuggestionRound("failed", said="the server failed; its log says why")
        with self._lock:
            self._round = ended

    def _track(self, items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
        for done, item in enumerate(items):
            of = f", {done} of {total}" if total else ""
            with self._lock:
                self._round = SuggestionRound("working", said=f"{label}{of}")
            yield item


def _unusable(error: UserError) -> RefusedRequest:
    """What is wrong is for those who run the server, not for those who ask it."""
    log.error("the collection cannot be used: %s", error)
    return RefusedRequest(500, "the collection of this server cannot be used; its log says why")
