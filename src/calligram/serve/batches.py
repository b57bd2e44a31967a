"""The threads that run searches, batches of searches that arrive together, and answers that are remembered."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from calligram.search.query.encoded_query import ImageSearch
from calligram.search.query.searcher import Results, Searcher
from calligram.serve.guard import QueueFullError, WorkTimeoutError

MAX_BATCH_SEARCHES = 16
"""larger batches save little more, and every search of a batch waits for the whole batch"""

T = TypeVar("T")
Answers = Sequence[Results | Exception]
Runner = Callable[[Callable[[], Answers]], Awaitable[Answers]]


class WorkerThreads:
    """A fixed number of threads with a bounded queue, so that the event loop stays free and the CPU is not overloaded.

    Args:
        threads: work that runs at the same time.
        max_waiting: further work that may wait.
        timeout: seconds from the call to the result; None for no limit.
        name: prefix of the threads' names.
    """

    def __init__(self, threads: int, max_waiting: int, timeout: float | None, name: str):
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads, self._capacity = threads, threads + max_waiting
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

    def use_one_core(self) -> None:
        """Start all threads, and let torch use one core in each of them."""
        import torch

        threads, together = torch.get_num_threads(), threading.Barrier(self._threads)

        def start() -> None:
            together.wait()  # so that each thread gets one call
            torch.get_num_threads()  # a thread that asks for the first time takes over the last number that was set
            torch.set_num_threads(1)

        for started in [self._pool.submit(start) for _ in range(self._threads)]:
            started.result()
        torch.set_num_threads(threads)  # for threads that start later

    def close(self, deadline: float | None = None) -> bool:
        """Drop waiting work, and wait for running work; returns whether it has ended.

        Args:
            deadline: time of ``time.monotonic`` until which it waits; None for as long as it takes.
        """
        self._pool.shutdown(wait=False, cancel_futures=True)
        for thread in self._pool._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._pool._threads)

    def _on_done(self, done: Future[T]) -> None:
        with self._lock:
            self._pending -= 1


class WaitingSearch(NamedTuple):
    """A search that has not started."""

    searcher: Searcher
    search: ImageSearch
    answer: asyncio.Future[Results]


class SearchBatches:
    """Answers searches for images, alone or in batches.

    A search starts at once if a thread is free. Searches that arrive while all threads are busy form the next batch. So
    no search waits for others. Only the event loop uses this class, so it needs no lock.

    Args:
        run: runs a single search in a thread.
        run_batch: runs several searches in a thread.
        threads: batches that run at the same time.
        max_waiting: searches that may wait; further ones are refused.
        timeout: seconds from the call to the result.
    """

    def __init__(self, run: Runner, run_batch: Runner, threads: int, max_waiting: int, timeout: float):
        self._run, self._run_batch = run, run_batch
        self._threads, self._max_waiting, self._timeout = threads, max_waiting, timeout
        self._waiting: deque[WaitingSearch] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def answer(self, searcher: Searcher, search: ImageSearch) -> Results:
        """Answer a search, alone or together with others.

        Raises:
            UserError: for an invalid search.
            QueueFullError: immediately, if the queue is full.
            WorkTimeoutError: after the time limit; a search that has not started by then is dropped.
        """
        if len(self._waiting) >= self._max_waiting:
            raise QueueFullError
        waiting = WaitingSearch(searcher, search, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._start()
        try:
            return await asyncio.wait_for(waiting.answer, self._timeout)
        except TimeoutError:
            raise WorkTimeoutError from None

    def _start(self) -> None:
        """Start batches while threads are free."""
        while len(self._running) < self._threads and (batch := self._next_batch()):
            task = asyncio.create_task(self._answer(batch))
            self._running.add(task)
            task.add_done_callback(self._on_done)

    def _next_batch(self) -> list[WaitingSearch]:
        """The searches that wait longest, all of one version of the library. Those that gave up are dropped."""
        batch: list[WaitingSearch] = []
        while self._waiting and len(batch) < MAX_BATCH_SEARCHES:
            first = self._waiting[0]
            if batch and (first.searcher is not batch[0].searcher or not first.searcher.batches):
                break
            self._waiting.popleft()
            if not first.answer.done():
                batch.append(first)
        return batch

    async def _answer(self, batch: list[WaitingSearch]) -> None:
        searcher, searches = batch[0].searcher, [waiting.search for waiting in batch]
        run = self._run if len(batch) == 1 else self._run_batch
        try:
            answers = await run(lambda: answer_each(searcher, searches))
        except Exception as error:  # the queue of the threads is full, or they took too long
            answers = [error] * len(batch)
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.answer.done():
                continue
            if isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()


def answer_each(searcher: Searcher, searches: Sequence[ImageSearch]) -> Answers:
    """The answer to each search, or its error. If a batch fails, each search is tried alone, so that one cannot fail
    the others.
    """
    try:
        return searcher.image_batch(searches)
    except Exception as error:
        if len(searches) == 1:
            return [error]
        return [answer for search in searches for answer in answer_each(searcher, [search])]


class RememberedResults:
    """Results of earlier requests to the present version of the library.

    A server has one permission: the guard refuses a request before it comes here, so everyone who comes here may see
    everything in the library. Only the event loop uses it, so it needs no lock.

    Args:
        max_hits: number of hits that are remembered in all; a result without hits counts as one.
    """

    def __init__(self, max_hits: int):
        self._max_hits, self._hits = max_hits, 0
        self._searcher: Searcher | None = None
        self._results: OrderedDict[str, Results] = OrderedDict()

    def find(self, searcher: Searcher, request: str) -> Results | None:
        """The results of a request, if they are of this version of the library."""
        if searcher is not self._searcher or request not in self._results:
            return None
        self._results.move_to_end(request)
        return self._results[request]

    def store(self, present: Searcher, searcher: Searcher, request: str, results: Results) -> None:
        """Remember results, unless they are of another version than the present one; forget the oldest ones."""
        if searcher is not present:
            return
        if present is not self._searcher:
            self._searcher, self._hits = present, 0
            self._results.clear()
        self._drop(request)
        self._results[request] = results
        self._hits += _size(results)
        while self._hits > self._max_hits:
            self._drop(next(iter(self._results)))

    def _drop(self, request: str) -> None:
        if (dropped := self._results.pop(request, None)) is not None:
            self._hits -= _size(dropped)


def _size(results: Results) -> int:
    return max(1, len(results.hits))
