"""The state that all routes share: the searcher, the threads that run searches, the metrics, and an overview of the
library for the page.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from fastapi import Request

from calligram.data.pictures import core_share
from calligram.errors import UserError
from calligram.progress import Track
from calligram.search.explain.library_localizer import LibraryLocalizer
from calligram.search.filters.columns import TEXT_COLUMN, group_of
from calligram.search.library.library import Library, most_frequent
from calligram.search.library.manifest import MatcherRecord
from calligram.search.query.album_suggestions import LibrarySample
from calligram.search.query.clusters import LibraryClusters, cluster_library
from calligram.search.query.duplicates import Duplicates, find_duplicates
from calligram.search.query.encoded_query import ImageSearch
from calligram.search.query.searcher import Results, Searcher
from calligram.serve.batches import RememberedResults, SearchBatches, WorkerThreads
from calligram.serve.caption_service import CaptionService
from calligram.serve.guard import RefusedRequest
from calligram.serve.item_lists import Completions, Listings
from calligram.serve.metrics import Metrics
from calligram.serve.schema import FacetValue
from calligram.serve.settings import MAX_EXPORTS, PLACE_COLUMNS, ServerSettings

log = logging.getLogger("calligram.serve")
T = TypeVar("T")

SWITCH_SECONDS = 0.0001
"""time after which a thread of Python lets another one run; searches release Python's lock in each call of torch, and
waited five milliseconds for it by default: 64 clients got 103 instead of 145 answers a second"""
WORK_SECONDS = 3.0
"""for work in threads to end, when the server stops; the requests that started it were answered or given up before"""
READ_THREADS = 4
"""threads that read items and thumbnails: they wait for the disk a short time, and must not wait for searches"""
SAMPLE_ITEMS = 48
EXAMPLE_QUERIES = 4
EXAMPLE_QUERY_WORDS = (3, 9)
"""fewest and most words of a caption that serves as an example"""
MAX_FACET_VALUES = 100
"""values of a column that are listed; a column with more than ten times as many values gets no filter"""
COLUMNS_WITHOUT_FILTER = frozenset(("width", "height", "bytes", *PLACE_COLUMNS, TEXT_COLUMN))
"""columns for conditions such as ``width >= 1000``; a list of their values is of no use, or tells places"""


class BackgroundAnswer(NamedTuple):
    """The result of work in the background, or its progress."""

    state: Literal["working", "ready", "failed"]
    result: Any = None
    message: str = ""
    """the present step, or the error"""
    library: Library | None = None
    """the version that the result belongs to"""


class BackgroundWork:
    """Work that takes longer than a request, once for each version of the library. Its result is remembered.

    While work for a new version runs, the result for the earlier one is the answer.
    """

    def __init__(self, work: Callable[[Searcher, Track], Any], name: str):
        self._work, self._name = work, name
        self._lock = threading.Lock()
        self._last: BackgroundAnswer | None = None
        self._step = ""
        self._thread: threading.Thread | None = None

    def answer(self, searcher: Searcher) -> BackgroundAnswer:
        """The result for the present library, or for an earlier version; starts the work if that is needed."""
        with self._lock:
            last, running = self._last, self._thread is not None and self._thread.is_alive()
            if not running and (last is None or last.library is not searcher.library):
                self._step = ""
                self._thread = threading.Thread(target=self._run, args=(searcher,), daemon=True, name=self._name)
                self._thread.start()
            return last if last is not None else BackgroundAnswer("working", message=self._step)

    def _run(self, searcher: Searcher) -> None:
        try:
            done = BackgroundAnswer("ready", self._work(searcher, self._track), library=searcher.library)
        except UserError as error:
            done = BackgroundAnswer("failed", message=str(error), library=searcher.library)
        except Exception:
            log.exception("%s failed", self._name)
            done = BackgroundAnswer("failed", message="the server failed; see its log", library=searcher.library)
        with self._lock:
            self._last = done

    def _track(self, items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
        for place, item in enumerate(items):
            with self._lock:
                self._step = f"{label}, {place} of {total}" if total else label
            yield item


def _clusters(searcher: Searcher, track: Track) -> LibraryClusters:
    return cluster_library(searcher.library, searcher.encoder, track=track)


def _duplicates(searcher: Searcher, track: Track) -> Duplicates:
    return find_duplicates(searcher.library, searcher.encoder, track=track)


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
        self._batch_threads = WorkerThreads(settings.workers, waiting, seconds, "batch")
        run = self._search_threads.run, self._batch_threads.run
        self._batches = SearchBatches(*run, settings.workers, waiting, seconds)
        self._remembered = RememberedResults(settings.remembered_hits)
        self._localize_threads = WorkerThreads(max(1, settings.workers // 2), waiting, seconds, "localize")
        self._read_threads = WorkerThreads(READ_THREADS, 4 * waiting, seconds, "read")
        self._caption_threads = WorkerThreads(1, waiting, seconds, "caption")
        self._watch_threads = WorkerThreads(1, 1, None, "watch")
        self.abandoned = False
        """whether work still runs after the end, because it took too long"""
        self.clusters = BackgroundWork(_clusters, "clusters")
        self.duplicates = BackgroundWork(_duplicates, "duplicates")
        self.listings, self.library_sample = Listings(), LibrarySample()
        self._completions: tuple[Library, Completions] | None = None
        self.exports = threading.BoundedSemaphore(MAX_EXPORTS)
        self._overview_lock = threading.Lock()
        self._overview: tuple[Library, Overview] | None = None

    async def search(self, work: Callable[[Searcher], T]) -> T:
        """Run a search in one of the search threads."""
        searcher = self.searcher
        return await self._search_threads.run(lambda: work(searcher))

    async def search_images(self, search: ImageSearch) -> Results:
        """Search for images, together with other searches that wait at the same time."""
        return await self._batches.answer(self.searcher, search)

    async def remembered(self, request: str, answer: Callable[[], Awaitable[Results]]) -> Results:
        """The results of a request: those of an equal earlier request to this version of the library, or new ones.

        Args:
            request: everything that the results depend on.
            answer: gives new results.
        """
        started, searcher = time.perf_counter(), self.searcher
        known = self._remembered.find(searcher, request)
        if known is not None:
            self.metrics.remembered_searches += 1
            stages = dict.fromkeys(known.stage_seconds, 0.0)
            return replace(known, stage_seconds=stages, seconds=time.perf_counter() - started)
        results = await answer()
        self._remembered.store(self.searcher, searcher, request, results)
        return results

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

    async def write(self, work: Callable[[Library], T]) -> T:
        """Write into the folder of the library, one client at a time.

        Raises:
            RefusedRequest: if the settings do not allow it, or the folder cannot be written to.
        """
        if not self.settings.may_save:
            raise RefusedRequest(403, "this server is open to everyone, so nothing can be saved; start it with --token")
        library = self.searcher.library
        try:
            return await self._caption_threads.run(lambda: work(library))
        except OSError as error:
            log.warning("the folder of the library cannot be written to: %s", error)
            raise RefusedRequest(409, f"the folder of the library cannot be written to: {error.strerror}") from None

    def overview(self, library: Library) -> Overview:
        """The overview of ``library``. The first caller computes it, and others wait for the result."""
        with self._overview_lock:
            if self._overview is None or self._overview[0] is not library:
                self._overview = library, library_overview(library)
            return self._overview[1]

    async def complete(self, typed: str, k: int) -> list[str]:
        """Texts that complete a query; the first request reads captions of the library."""
        searcher = self.searcher

        def read() -> list[str]:
            with self._overview_lock:
                if self._completions is None or self._completions[0] is not searcher.library:
                    self._completions = searcher.library, Completions.of(searcher)
            return self._completions[1].complete(typed, k)

        return await self._read_threads.run(read)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch the library while the server runs, and stop all threads at its end."""
        limit_torch_threads(self.settings.processes)
        sys.setswitchinterval(SWITCH_SECONDS)
        # Batches run next to each other and to keyword search: with more threads they would wait for each other.
        self._batch_threads.use_one_core()
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            deadline = time.monotonic() + WORK_SECONDS
            all_threads = (
                *(self._search_threads, self._batch_threads, self._localize_threads),
                *(self._read_threads, self._caption_threads, self._watch_threads),
            )
            self.abandoned = not all([threads.close(deadline) for threads in all_threads])

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.settings.refresh_seconds)
            try:
                self.searcher = await self._watch_threads.run(self.searcher.refreshed)
                if self.searcher.library.manifest.localizer != self.localizer_state.record:
                    self.localizer_state = await self._watch_threads.run(partial(LocalizerState.open, self.searcher))
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


def limit_torch_threads(processes: int = 1) -> None:
    """Let one search use half of the cores, and at least two; with several processes, their share of the cores.

    With one core per search, a single query takes twice as long. With all cores, searches that run at the same time
    slow each other down on machines with many cores. So searches that overlap may use more threads than there are
    cores: the only place, because they take milliseconds and most come alone.
    """
    import torch

    threads = max(2, core_share() // 2) if processes == 1 else max(1, core_share() // processes)
    torch.set_num_threads(min(torch.get_num_threads(), threads))


@dataclass(frozen=True)
class Overview:
    """Values to filter by, a sample of items, and example queries; computed once for each version of a library."""

    facets: Mapping[str, list[FacetValue]]
    sample: tuple[str, ...]
    examples: tuple[str, ...]
    days: Mapping[str, int]
    """number of items that were taken on each day, in order"""
    undated: int


def library_overview(library: Library) -> Overview:
    """Read all items. The sample is always the same, so that the page looks the same after a reload and a rebuild."""
    present, days = 0, Counter[str]()
    filters = [name for name in library.kinds if name not in COLUMNS_WITHOUT_FILTER]
    counters: dict[str, Counter[Any]] = {name: Counter() for name in filters}
    for row in library.rows():
        if row["state"] != "present":
            continue
        present += 1
        _count(counters, row)
        days[group_of(row, "day") or ""] += 1
    sample = library.sample(SAMPLE_ITEMS)
    facets = {name: _values(counter) for name, counter in counters.items() if _is_useful(counter, present)}
    undated = days.pop("", 0)
    return Overview(facets, tuple(sample), _examples(library, sample), dict(sorted(days.items())), undated)


def _count(counters: dict[str, Counter[Any]], row: Mapping[str, Any]) -> None:
    for name, counter in list(counters.items()):
        value = row.get(name)
        if value is not None and value != "":
            counter[value] += 1
            if len(counter) > 10 * MAX_FACET_VALUES:
                del counters[name]


def _is_useful(counter: Counter[Any], items: int) -> bool:
    """Whether a filter by value narrows the results: several values, and at most half as many as items."""
    return 1 < len(counter) <= max(2, items // 2)


def _values(counter: Counter[Any]) -> list[FacetValue]:
    """The most frequent values; numbers in ascending order if all of them are listed."""
    values: Iterable[tuple[Any, int]] = most_frequent(counter, MAX_FACET_VALUES)
    if len(counter) <= MAX_FACET_VALUES and not any(isinstance(value, str) for value in counter):
        values = sorted(values)
    return [FacetValue(value=value, count=count) for value, count in values]


def _examples(library: Library, sample: list[str]) -> tuple[str, ...]:
    found: list[str] = []
    fewest, most = EXAMPLE_QUERY_WORDS
    for item in library.items(sample):
        short = [text for text in item.captions if fewest <= len(text.split()) <= most]
        if short:
            found.append(short[0].strip().rstrip("."))
    return tuple(dict.fromkeys(found))[:EXAMPLE_QUERIES]
