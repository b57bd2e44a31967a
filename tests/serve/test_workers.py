from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from calligram.serve.workers import BusyError, LateError, Workers


def alone(coroutine):
    """Run in a thread of its own: Playwright leaves an event loop running in the one that tests share."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def test_no_more_work_runs_at_a_time_than_there_are_threads():
    workers, running, most = Workers(2, 100, 10, "test"), [], []

    def work() -> None:
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)
        running.pop()

    async def all_of_it() -> None:
        await asyncio.gather(*(workers.run(work) for _ in range(20)))

    alone(all_of_it())
    workers.close()
    assert max(most) == 2


def test_a_full_queue_refuses_and_has_room_again_later():
    workers, free = Workers(1, 1, 10, "test"), threading.Event()

    async def crowd() -> int:
        first, second = (asyncio.ensure_future(workers.run(free.wait)) for _ in range(2))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await workers.run(free.wait)
        free.set()
        await asyncio.gather(first, second)
        return await workers.run(lambda: 7)

    assert alone(crowd()) == 7
    workers.close()


def test_work_that_takes_too_long_is_given_up_and_its_place_is_kept_until_it_ends():
    workers, free = Workers(1, 0, 0.05, "test"), threading.Event()

    async def late() -> str:
        with pytest.raises(LateError):
            await workers.run(free.wait)
        with pytest.raises(BusyError):
            await workers.run(str)
        free.set()
        while True:
            try:
                return await workers.run(lambda: "again")
            except BusyError:
                await asyncio.sleep(0.01)

    assert alone(late()) == "again"
    workers.close()


def test_errors_of_the_work_are_those_of_the_caller():
    workers = Workers(1, 1, 1, "test")
    with pytest.raises(ZeroDivisionError):
        alone(workers.run(lambda: 1 // 0))
    workers.close()
