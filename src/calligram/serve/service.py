"""The state that all routes share: the searcher, the threads that run searches, the metrics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from fastapi import Request

from calligram.data.pictures import core_share
from calligram.errors import UserError
from calligram.search.explain.library_localizer import LibraryLocalizer
from calligram.search.library.library import Library
from calligram.search.library.manifest import MatcherRecord
from calligram.search.query.searcher import Searcher
from calligram.serve.caption_service import CaptionService
from calligram.serve.guard import QueueFullError, RefusedRequest, WorkTimeoutError
from calligram.serve.metrics import Metrics
from calligram.serve.overview import Overview, library_overview
from calligram.serve.settings import ServerSettings

log = logging.getLogger("calligram.serve")
T = TypeVar("T")

READ_THREADS = 4
"""threads that read items and thumbnails: they wait for the disk a short time, and must not wait for searches"""


class WorkerThreads:
    """A fixed number of threads with a bounded queue, so that the event loop stays free and the CPU is not overloaded.

    Args:
        threads: work that runs at the same time.
        max_waiting: further work that may wait.
        timeout: seconds from the call to the result.
        name: prefix of the threads' names.
    """

    def __init__(self, threads: int, max_waiting: int, timeout: float, name: str):
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._capacity = threads + max_waiting
        self._timeout = timeout
        self._lock = threading.Lock()
        self._pending = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread.

        Raises:
            QueueFullError: immediately, if the queue is full.
            WorkTimeoutError: after the time limit; work that has not started by then is dropped.
        """
        with self._lock:
            if self._pending >= self._capacity:
                raise QueueFullError
            self._pending += 1
        future = self._pool.submit(work)
        # The work counts until its thread is free, not until the caller stops waiting.
        future.add_done_callback(self._on_done)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout)
        except TimeoutError:
            raise WorkTimeoutError from None

    def close(self) -> None:
        """Wait for running work, and drop waiting work."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _on_done(self, done: Future[T]) -> None:
        with self._lock:
            self._pending -= 1


class LocalizerState(NamedTuple):
    """The localizer of the present version of the library."""

    localizer: LibraryLocalizer | None
    error: str
    """why there is none"""
    record: MatcherRecord | None
    """the localizer that the library names"""

    @classmethod
    def open(cls, searcher: Searcher) -> LocalizerState:
        """Open the localizer. A library whose localizer cannot be loaded can still be searched."""
        record = searcher.library.manifest.localizer
        try:
            return cls(LibraryLocalizer.open(searcher.library, searcher.device), "", record)
        except UserError as error:
            if record is not None:
                log.warning("phrases cannot be localized: %s", error)
            return cls(None, str(error), record)


class Service:
    """Holds the searcher, and replaces it when the library has a new version."""

    def __init__(self, searcher: Searcher, settings: ServerSettings):
        self.searcher, self.settings, self.metrics = searcher, settings, Metrics()
        self.problem: str | None = None
        self.localizer_state = LocalizerState.open(searcher)
        self.captions = None if settings.collection is None else CaptionService(settings.collection)
        waiting, seconds = settings.max_waiting, settings.timeout_seconds
        self._search_threads = WorkerThreads(settings.workers, waiting, seconds, "search")
        self._localize_threads = WorkerThreads(max(1, settings.workers // 2), waiting, seconds, "localize")
        self._read_threads = WorkerThreads(READ_THREADS, 4 * waiting, seconds, "read")
        self._caption_threads = WorkerThreads(1, waiting, seconds, "caption")
        self._overview_lock = threading.Lock()
        self._overview: tuple[Library, Overview] | None = None

    async def search(self, work: Callable[[Searcher], T]) -> T:
        """Run a search in one of the search threads."""
        searcher = self.searcher
        return await self._search_threads.run(lambda: work(searcher))

    async def localize(self, work: Callable[[LibraryLocalizer, Library], T]) -> T:
        """Localize phrases, in threads of their own: it takes longer than a search, and searches must not wait for it.

        Raises:
            RefusedRequest: if the library has no localizer.
        """
        localizer, library = self.localizer_state.localizer, self.searcher.library
        if localizer is None:
            raise RefusedRequest(409, self.localizer_state.error)
        return await self._localize_threads.run(lambda: work(localizer, library))

    async def read(self, work: Callable[[Library], T]) -> T:
        """Read from the library."""
        library = self.searcher.library
        return await self._read_threads.run(lambda: work(library))

    async def caption(self, work: Callable[[CaptionService], T], *, writes: bool = True) -> T:
        """Use the collection that captions are written into; work that may write runs one at a time.

        Raises:
            RefusedRequest: if the server has no collection.
        """
        captions = self.captions
        if captions is None:
            raise RefusedRequest(409, "this server has no collection for captions; start it with --collection FOLDER")
        return await (self._caption_threads if writes else self._read_threads).run(lambda: work(captions))

    def overview(self, library: Library) -> Overview:
        """The overview of ``library``. The first caller computes it, and others wait for the result."""
        with self._overview_lock:
            if self._overview is None or self._overview[0] is not library:
                self._overview = library, library_overview(library)
            return self._overview[1]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch the library while the server runs, and stop all threads at its end."""
        limit_torch_threads()
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            for threads in (self._search_threads, self._localize_threads, self._read_threads, self._caption_threads):
                threads.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.settings.refresh_seconds)
            try:
                self.searcher = await asyncio.to_thread(self.searcher.refreshed)
                if self.searcher.library.manifest.localizer != self.localizer_state.record:
                    self.localizer_state = await asyncio.to_thread(LocalizerState.open, self.searcher)
                self.problem = None
            except (UserError, OSError) as error:
                # The open version stays readable: a reader keeps the table versions that it opened.
                if self.problem != str(error):
                    log.warning("the library has changed and cannot be read: %s", error)
                self.problem = str(error)


def service_of(request: Request) -> Service:
    """The service of the application that received a request."""
    found: Service = request.app.state.service
    return found


def limit_torch_threads() -> None:
    """Let one search use half of the cores, and at least two.

    With one core per search, a single query takes twice as long. With all cores, searches that run at the same time
    slow each other down on machines with many cores. So searches that overlap may use more threads than there are
    cores: the only place, because they take milliseconds and most come alone.
    """
    import torch

    torch.set_num_threads(min(torch.get_num_threads(), max(2, core_share() // 2)))
