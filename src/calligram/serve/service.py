"""What the routes share: the searcher of the moment, the threads it runs in, the counts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from fastapi import Request

from calligram.errors import UserError
from calligram.search.explain.library_localizer import LibraryLocalizer
from calligram.search.library.library import Library
from calligram.search.library.manifest import MatcherRecord
from calligram.search.query.searcher import Searcher
from calligram.serve.caption_desk import CaptionDesk
from calligram.serve.guard import RefusedRequest
from calligram.serve.metrics import Metrics
from calligram.serve.schema import FacetValue
from calligram.serve.settings import ServerSettings
from calligram.serve.workers import Workers, share_cores

# What a library looks like from afar: values to filter by, some of its pictures, and things one might ask it.

SAMPLE = 48
MOST_VALUES = 100
"""values of a column that are worth a list to choose from; beyond ten times as many it is not counted at all"""
MEASURED = frozenset(("width", "height", "bytes", "latitude", "longitude"))
"""columns that nobody chooses single values of, and that a condition such as ``width >= 1000`` is for"""
EXAMPLES = 4
WORDS = (3, 9)
"""length of a caption that reads like a query"""


@dataclass(frozen=True)
class Overview:
    """Counted once for each state of a library."""

    facets: Mapping[str, list[FacetValue]]
    sample: tuple[str, ...]
    examples: tuple[str, ...]


def overview(library: Library) -> Overview:
    """Pass over all items once. The sample is drawn the same way each time, so that the page does not flicker."""
    draw, present = random.Random(0), 0
    counters: dict[str, Counter[Any]] = {name: Counter() for name in library.kinds if name not in MEASURED}
    sample: list[str] = []
    for row in library.rows():
        if row["state"] != "present":
            continue
        present += 1
        _count(counters, row)
        if len(sample) < SAMPLE:
            sample.append(row["id"])
        elif (slot := draw.randrange(present)) < SAMPLE:
            sample[slot] = row["id"]
    draw.shuffle(sample)
    facets = {name: _values(counter) for name, counter in counters.items() if _chooses(counter, present)}
    return Overview(facets, tuple(sample), _examples(library, sample))


def _count(counters: dict[str, Counter[Any]], row: Mapping[str, Any]) -> None:
    for name, counter in list(counters.items()):
        value = row.get(name)
        if value is not None and value != "":
            counter[value] += 1
            if len(counter) > 10 * MOST_VALUES:
                del counters[name]


def _chooses(counter: Counter[Any], items: int) -> bool:
    """Whether choosing a value narrows anything: several values, and fewer of them than items."""
    return 1 < len(counter) <= max(2, items // 2)


def _values(counter: Counter[Any]) -> list[FacetValue]:
    """The commonest; numbers and years in their own order when all of them are shown."""
    values: Iterable[tuple[Any, int]] = counter.most_common(MOST_VALUES)
    if len(counter) <= MOST_VALUES and not any(isinstance(value, str) for value in counter):
        values = sorted(values)
    return [FacetValue(value=value, count=count) for value, count in values]


def _examples(library: Library, sample: list[str]) -> tuple[str, ...]:
    found: list[str] = []
    for item in library.items(sample):
        short = [text for text in item.captions if WORDS[0] <= len(text.split()) <= WORDS[1]]
        if short:
            found.append(short[0].strip().rstrip("."))
    return tuple(dict.fromkeys(found))[:EXAMPLES]


log = logging.getLogger("calligram.serve")
T = TypeVar("T")

READERS = 4
"""threads that fetch items and thumbnails: short waits for the disk, which must not queue behind searches"""


class LocalizerState(NamedTuple):
    """The localizer of the moment."""

    locator: LibraryLocalizer | None
    problem: str
    """why there is none"""
    model: MatcherRecord | None
    """what the library names"""

    @classmethod
    def of(cls, searcher: Searcher) -> LocalizerState:
        """Open it; a library whose localizer is gone can still be searched."""
        model = searcher.library.manifest.localizer
        try:
            return cls(LibraryLocalizer.open(searcher.library, searcher.device), "", model)
        except UserError as error:
            if model is not None:
                log.warning("phrases cannot be found within pictures: %s", error)
            return cls(None, str(error), model)


class Service:
    """Holds the searcher and replaces it when the library has changed."""

    def __init__(self, searcher: Searcher, settings: ServerSettings):
        self.searcher, self.settings, self.metrics = searcher, settings, Metrics()
        self.problem: str | None = None
        self.locating = LocalizerState.of(searcher)
        self._searches = Workers(settings.workers, settings.waiting, settings.timeout, "search")
        self._looks = Workers(max(1, settings.workers // 2), settings.waiting, settings.timeout, "look")
        self._reads = Workers(READERS, 4 * settings.waiting, settings.timeout, "read")
        self.desk = None if settings.collection is None else CaptionDesk(settings.collection)
        self._captions = Workers(1, settings.waiting, settings.timeout, "caption")
        self._looking = threading.Lock()
        self._looked: tuple[Library, Overview] | None = None

    async def search(self, work: Callable[[Searcher], T]) -> T:
        """Run a search, in one of a few threads."""
        searcher = self.searcher
        return await self._searches.run(lambda: work(searcher))

    async def locate(self, work: Callable[[LibraryLocalizer, Library], T]) -> T:
        """Look into a picture, in threads of its own: it takes longer than a search, which must not wait for it.

        Raises:
            Refused: when the library has no localizer.
        """
        locator, library = self.locating.locator, self.searcher.library
        if locator is None:
            raise RefusedRequest(409, self.locating.problem)
        return await self._looks.run(lambda: work(locator, library))

    async def read(self, work: Callable[[Library], T]) -> T:
        """Look something up in the library."""
        library = self.searcher.library
        return await self._reads.run(lambda: work(library))

    async def caption(self, work: Callable[[CaptionDesk], T], *, writes: bool = True) -> T:
        """Do something with the collection that captions go into; what may write takes turns.

        Raises:
            Refused: when the server has none.
        """
        desk = self.desk
        if desk is None:
            raise RefusedRequest(
                409, "this server writes no captions; start it with --collection and the collection's folder"
            )
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
                    self.locating = await asyncio.to_thread(LocalizerState.of, self.searcher)
                self.problem = None
            except (UserError, OSError) as error:
                # The state that is open stays good: a reader keeps the versions it was opened at.
                if self.problem != str(error):
                    log.warning("the library has changed and cannot be read: %s", error)
                self.problem = str(error)


def service_of(request: Request) -> Service:
    """The service of the application that a request came to."""
    found: Service = request.app.state.service
    return found
