"""Captioning through the server: suggests images of a collection and writes their captions into it."""

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
from calligram.search.indexing.encode import thumbnail
from calligram.search.library.library import Library
from calligram.search.library.matchers import load_recorded
from calligram.serve.guard import RefusedRequest

log = logging.getLogger("calligram.serve")
T = TypeVar("T")

SUGGESTIONS_PER_ROUND = 50


class SuggestionRound(NamedTuple):
    """The suggested images, or the progress of choosing them."""

    state: Literal["working", "ready", "failed"]
    chosen: tuple[Suggestion, ...] = ()
    captioned: int = 0
    """training images that have captions now"""
    left: int = 0
    """training images without captions"""
    message: str = ""
    """the present step, or the error"""


class CaptionService:
    """Suggests images of one collection, in a background thread, and writes captions into the collection."""

    def __init__(self, folder: Path) -> None:
        self._collection = Collection.open(folder)
        self._rows = {str(name): row for row, name in enumerate(self._collection.column("images", "id"))}
        self._lock = threading.Lock()
        self._round: SuggestionRound | None = None
        self._thread: threading.Thread | None = None

    def suggestions(self, library: Library) -> SuggestionRound:
        """The images of this round that have no caption yet. The first call starts a round."""
        with self._lock:
            now = self._round
        if now is None:
            return self.start_round(library)
        if now.state != "ready":
            return now
        try:
            captioned = set(self._reopen().numbers("matches", "image").tolist())
        except UserError as error:
            raise _unusable(error) from None
        remaining = tuple(s for s in now.chosen if s.row not in captioned)
        done = len(now.chosen) - len(remaining)
        return now._replace(chosen=remaining, captioned=now.captioned + done, left=now.left - done)

    def start_round(self, library: Library) -> SuggestionRound:
        """Choose images again, with the captions that were added since. Does nothing while a round is being chosen."""
        with self._lock:
            if self._thread is None:
                self._round = SuggestionRound("working", message="loading the matcher")
                self._thread = threading.Thread(target=self._suggest, args=(library,), daemon=True, name="suggest")
                self._thread.start()
            assert self._round is not None
            return self._round

    def write(self, image: str, text: str) -> bool:
        """Add a caption; False if the image has this caption already.

        Raises:
            UserError: if the caption is empty or too long.
            RefusedRequest: if there is no such image, or the collection can no longer be read.
        """
        self._row(image)
        text = clean_caption(text)
        try:
            added = add_new_captions(self._collection.folder, [NewCaption(image, text)])
        except UserError as error:  # image and caption are valid, so the collection is the problem
            raise _unusable(error) from None
        with self._lock:
            self._collection = added.collection
        return added.captions > 0

    def thumbnail(self, image: str) -> bytes:
        """A small JPEG of an image of the collection."""
        row = self._row(image)
        try:
            return thumbnail(self._collection.pictures.open(row), self._collection.pictures.read(row))
        except PictureError as error:
            raise RefusedRequest(404, str(error)) from None

    def _row(self, image: str) -> int:
        if image not in self._rows:
            raise RefusedRequest(404, f"the collection has no image {image!r}")
        return self._rows[image]

    def _reopen(self) -> Collection:
        """The present state of the collection; other programs may write into it too."""
        now = Collection.open(self._collection.folder)
        with self._lock:
            if now.manifest.get("revision") != self._collection.manifest.get("revision"):
                self._collection = now
            return self._collection

    def _suggest(self, library: Library) -> None:
        try:
            stored = load_recorded(library.folder, "matcher", library.manifest.matcher)
            found = suggest_images(
                stored.matcher, stored.inputs, self._reopen(), SUGGESTIONS_PER_ROUND, track=self._track
            )
            ended = SuggestionRound("ready", found.chosen, found.captioned, found.candidates)
        except UserError as error:
            ended = SuggestionRound("failed", message=str(error))
        except Exception:
            log.exception("images could not be suggested")
            ended = SuggestionRound("failed", message="the server failed; see its log")
        with self._lock:
            self._round, self._thread = ended, None

    def _track(self, items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
        for done, item in enumerate(items):
            of = f", {done} of {total}" if total else ""
            with self._lock:
                self._round = SuggestionRound("working", message=f"{label}{of}")
            yield item


def _unusable(error: UserError) -> RefusedRequest:
    """Log the details for the operator of the server, and give clients a general message."""
    log.error("the collection cannot be used: %s", error)
    return RefusedRequest(500, "the collection of this server cannot be used; see the log of the server")
