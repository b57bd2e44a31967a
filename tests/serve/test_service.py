"""The searcher behind the routes: its faults, new versions of its library, and the threads that it runs in."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from calligram.errors import UserError
from calligram.search.indexing.run import index_source
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.query.searcher import Searcher
from calligram.serve.batches import WorkerThreads
from calligram.serve.guard import QueueFullError, WorkTimeoutError
from calligram.serve.server import create_app
from calligram.serve.service import SWITCH_SECONDS
from calligram.serve.settings import ServerSettings


@pytest.fixture
def searcher(library_folder) -> Searcher:
    return Searcher.open(library_folder)


def client(searcher: Searcher, **settings: object) -> TestClient:
    return TestClient(create_app(searcher, ServerSettings(**settings)), base_url="http://localhost")


def test_an_internal_error_is_answered_with_the_id_of_its_log_entry(searcher, monkeypatch, caplog):
    def break_down(*_: object, **__: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(searcher, "image_batch", break_down)
    with client(searcher) as asking, caplog.at_level(logging.ERROR):
        answer = asking.get("/api/search", params={"q": "a dog"})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.json()["id"] in caplog.text
    assert "a secret detail" in caplog.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_an_unreadable_new_version_is_reported_while_the_old_version_serves(searcher, monkeypatch):
    def fail() -> Searcher:
        raise UserError("the matcher has changed")

    monkeypatch.setattr(searcher, "refreshed", fail)
    with client(searcher, refresh_seconds=0.01) as asking:
        problem = None
        while problem is None:
            problem = asking.get("/api/health").json()["problem"]
        assert problem == "the matcher has changed"
        assert asking.get("/api/search", params={"q": "a dog", "all": True}).json()["hits"]


def test_a_search_that_takes_too_long_is_stopped(searcher, monkeypatch):
    free = threading.Event()
    monkeypatch.setattr(searcher, "image_batch", lambda *_, **__: free.wait(60))
    with client(searcher, timeout_seconds=0.05) as asking:
        answer = asking.get("/api/search", params={"q": "a dog"})
        free.set()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "took too long" in answer.json()["error"]


def test_pictures_indexed_later_are_found_without_a_restart(served_run, tmp_path):
    matchers, pictures, library = LibraryMatchers.load(served_run / "run"), tmp_path / "pictures", tmp_path / "library"
    pictures.mkdir()
    Image.new("RGB", (50, 40), "red").save(pictures / "red.png")
    index_source(matchers, pictures, library)
    with client(Searcher.open(library), refresh_seconds=0.05) as growing:
        assert growing.get("/api/stats").json()["stats"]["items"] == 1
        Image.new("RGB", (50, 40), "blue").save(pictures / "blue.jpg")
        index_source(matchers, pictures, library)
        until = time.monotonic() + 60
        while growing.get("/api/stats").json()["stats"]["items"] == 1 and time.monotonic() < until:
            time.sleep(0.05)
        hits = growing.get("/api/search", params={"q": "blue", "all": True}).json()["hits"]
        found = {hit["path"].rsplit("/", 1)[-1]: hit["id"] for hit in hits}
        assert found.keys() == {"red.png", "blue.jpg"}
        (pictures / "blue.jpg").unlink()
        assert growing.get("/api/image", params={"id": found["blue.jpg"]}).status_code == 404
        assert growing.get("/api/thumbnail", params={"id": found["blue.jpg"]}).status_code == 200


def alone(coroutine):
    """Run in a thread of its own: Playwright leaves an event loop running in the one that tests share."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def test_the_number_of_threads_limits_concurrent_work():
    workers, running, most = WorkerThreads(2, 100, 10, "test"), [], []

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


def test_torch_uses_one_core_in_the_threads_of_batches_and_only_there():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    batches, others = WorkerThreads(3, 10, 10, "batch"), WorkerThreads(1, 10, 10, "other")
    try:
        batches.use_one_core()

        async def counts(workers: WorkerThreads) -> set[int]:
            return set(await asyncio.gather(*(workers.run(torch.get_num_threads) for _ in range(9))))

        assert alone(counts(batches)) == {1}
        assert alone(counts(others)) == {2}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
        for workers in (batches, others):
            workers.close()


def test_threads_take_turns_more_often_in_a_process_that_serves(searcher):
    with client(searcher):
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)


def test_a_full_queue_refuses_work_and_accepts_it_again_later():
    workers, free = WorkerThreads(1, 1, 10, "test"), threading.Event()

    async def crowd() -> int:
        first, second = (asyncio.ensure_future(workers.run(free.wait)) for _ in range(2))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await workers.run(free.wait)
        free.set()
        await asyncio.gather(first, second)
        return await workers.run(lambda: 7)

    assert alone(crowd()) == 7
    workers.close()


def test_work_over_the_time_limit_keeps_its_place_until_it_ends():
    workers, free = WorkerThreads(1, 0, 0.05, "test"), threading.Event()

    async def late() -> str:
        with pytest.raises(WorkTimeoutError):
            await workers.run(free.wait)
        with pytest.raises(QueueFullError):
            await workers.run(str)
        free.set()
        while True:
            try:
                return await workers.run(lambda: "again")
            except (QueueFullError, WorkTimeoutError):  # a busy machine may need longer than the limit
                await asyncio.sleep(0.01)

    assert alone(late()) == "again"
    workers.close()


def test_errors_of_the_work_are_raised_to_the_caller():
    workers = WorkerThreads(1, 1, 1, "test")
    with pytest.raises(ZeroDivisionError):
        alone(workers.run(lambda: 1 // 0))
    workers.close()
