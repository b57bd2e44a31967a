"""Searches run in a few threads, so that the event loop stays free and the processor is not overrun."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class BusyError(Exception):
    """So many requests wait already that this one would wait too long."""


class LateError(Exception):
    """The work was not done in time."""


class Workers:
    """A bounded number of threads with a bounded queue before them."""

    def __init__(self, threads: int, waiting: int, timeout: float, name: str):
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._room = threads + waiting
        self._timeout = timeout
        self._lock = threading.Lock()
        self._inside = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Do ``work`` in a thread.

        Raises:
            BusyError: at once, when the queue is full.
            LateError: after the time limit; work that has not begun is dropped then.
        """
        self._enter()
        future = self._pool.submit(work)
        # Counted until the thread is free again, not until we stop waiting for it.
        future.add_done_callback(self._leave)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout)
        except TimeoutError:
            raise LateError from None

    def close(self) -> None:
        """Let what runs finish, and drop what waits."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _enter(self) -> None:
        with self._lock:
            if self._inside >= self._room:
                raise BusyError
            self._inside += 1

    def _leave(self, done: Future[T]) -> None:
        with self._lock:
            self._inside -= 1


def share_cores() -> None:
    """Let a search use half of the cores, and two at least.

    With one core each, a lone query waits twice as long for its scan; with all of them, many at once get in each
    other's way on machines with many cores.
    """
    import torch

    torch.set_num_threads(min(torch.get_num_threads(), max(2, (os.cpu_count() or 1) // 2)))
