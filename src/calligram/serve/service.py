"""What the routes share: the searcher of the moment, the threads it runs in, the counts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, TypeVar

from fastapi import Request

from calligram.errors import UserError
from calligram.search.library import Library
from calligram.search.locator import Locator
from calligram.search.manifest import Model
from calligram.search.searcher import Searcher
from calligram.serve.desk import Desk
from calligram.serve.metrics import Metrics
from calligram.serve.overview import Overview, overview
from calligram.serve.problems import Refused
from calligram.serve.settings import Settings
from calligram.serve.workers import Workers, share_cores

log = logging.getLogger("calligram.serve")
T = TypeVar("T")

READERS = 4
"""threads that fetch items and thumbnails: short waits for the disk, which must not queue behind searches"""


class Locating(NamedTuple):
    """The localizer of the moment."""

    locator: Locator | None
    problem: str
    """why there is none"""
    model: Model | None
    """what the library names"""

    @classmethod
    def of(cls, searcher: Searcher) -> Locating:
        """Open it; a library whose localizer is gone can still be searched."""
        model = searcher.library.manifest.localizer
        try:
            return cls(Locator.open(searcher.library, searcher.device), "", model)
        except UserError as error:
            if model is not None:
                log.warning("phrases cannot be found within pictures: %s", error)
            return cls(None, str(error), model)


class Service:
    """Holds the searcher and replaces it when the library has changed."""

    def __init__(self, searcher: Searcher, settings: Settings):
        self.searcher, self.settings, self.metrics = searcher, settings, Metrics()
        self.problem: str | None = None
        self.locating = Locating.of(searcher)
        self._searches = Workers(settings.workers, settings.waiting, settings.timeout, "search")
        self._looks = Workers(max(1, settings.workers // 2), settings.waiting, settings.timeout, "look")
        self._reads = Workers(READERS, 4 * settings.waiting, settings.timeout, "read")
        self.desk = None if settings.collection is None else Desk(settings.collection)
        self._captions = Workers(1, settings.waiting, settings.timeout, "caption")
        self._looking = threading.Lock()
        self._looked: tuple[Library, Overview] | None = None

    async def search(self, work: Callable[[Searcher], T]) -> T:
        """Run a search, in one of a few threads."""
        searcher = self.searcher
        return await self._searches.run(lambda: work(searcher))

    async def locate(self, work: Callable[[Locator, Library], T]) -> T:
        """Look into a picture, in threads of its own: it takes longer than a search, which must not wait for it.

        Raises:
            Refused: when the library has no localizer.
        """
        locator, library = self.locating.locator, self.searcher.library
        if locator is None:
            raise Refused(409, self.locating.problem)
        return await self._looks.run(lambda: work(locator, library))

    async def read(self, work: Callable[[Library], T]) -> T:
        """Look something up in the library."""
        library = self.searcher.library
        return await self._reads.run(lambda: work(library))

    async def caption(self, work: Callable[[Desk], T], *, writes: bool = True) -> T:
        """Do something with the collection that captions go into; what may write takes turns.

        Raises:
            Refused: when the server has none.
        """
        desk = self.desk
        if desk is None:
            raise Refused(409, "this server writes no captions; start it with --collection and the collection's folder")
        return await (self._captions if writes else self._reads).run(lambda: work(desk))

    def overview(self, library: Library) -> Overview:
        """What ``library`` looks like; the first to ask waits for the counting, others wait with it."""
        with self._looking:
            if self._looked is None or self._looked[0] is not library:
                self._looked = library, overview(library)
            return self._looked[1]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From the first request to the last."""
        share_cores()
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            self._searches.close()
            self._looks.close()
            self._reads.close()
            self._captions.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.settings.refresh)
            try:
                self.searcher = await asyncio.to_thread(self.searcher.refreshed)
                if self.searcher.library.manifest.localizer != self.locating.model:
                    self.locating = await asyncio.to_thread(Locating.of, self.searcher)
                self.problem = None
            except (UserError, OSError) as error:
                # The state that is open stays good: a reader keeps the versions it was opened at.
                if self.problem != str(error):
                    log.warning("the library has changed and cannot be read: %s", error)
                self.problem = str(error)


def service(request: Request) -> Service:
    """The service of the application that a request came to."""
    found: Service = request.app.state.service
    return found
