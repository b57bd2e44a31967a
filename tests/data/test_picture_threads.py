"""Threads that decode pictures: as many as this process has cores, and torch on one core in each."""

from __future__ import annotations

import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import calligram
from calligram.data import pictures
from calligram.data.pictures import core_share, map_in_order, share_cores, worker_threads
from calligram.extras import opencv
from calligram.features.images.pixels import PixelInput
from calligram.features.images.resize import map_batches
from calligram.scenes.generate import generate_scenes


@pytest.fixture
def cores(monkeypatch):
    """A machine with 16 cores, on which this process is alone."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(pictures, "_sibling_processes", 1)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


def test_a_process_has_the_cores_that_it_may_run_on_divided_by_the_processes_beside_it(cores, monkeypatch):
    assert core_share() == 16
    share_cores(3)
    assert core_share() == 5
    share_cores(40)
    assert core_share() == 1
    share_cores(1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")  # as torchrun sets it
    assert core_share() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "")
    assert core_share() == 16


def test_the_threads_of_a_pool_times_those_of_torch_are_the_share_of_the_process(cores):
    share_cores(4)
    before, barrier = torch.get_num_threads(), threading.Barrier(4)
    try:
        torch.set_num_threads(2)
        with worker_threads() as pool:
            assert pool._max_workers == core_share() == 4
            each = list(pool.map(lambda _: (barrier.wait(30), torch.get_num_threads())[1], range(4)))
            assert sum(each) == core_share()
            assert torch.get_num_threads() == 2  # of the thread that waits for the pool
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_pools_of_several_threads_leave_torch_as_it_was(cores):
    before = torch.get_num_threads()

    def use() -> None:
        with worker_threads() as pool:
            list(pool.map(str, range(4)))

    try:
        torch.set_num_threads(2)
        with worker_threads() as pool:
            list(pool.map(str, range(4)))
            other = threading.Thread(target=use)  # it starts while threads of torch are limited, and ends before
            other.start()
            other.join()
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


def test_results_come_in_order_and_at_most_so_many_items_are_started_ahead():
    started: list[int] = []
    with worker_threads() as pool:
        results = map_in_order(pool, lambda n: started.append(n) or n * n, range(20), 3)
        assert next(results) == 0
        assert max(started) <= 3
        assert list(results) == [n * n for n in range(1, 20)]


@pytest.mark.parametrize("ahead", [True, False])
def test_batches_have_all_results_and_start_ahead_only_on_request(ahead):
    started: list[int] = []
    with worker_threads() as pool:
        batches = map_batches(pool, lambda n: started.append(n) or n, list(range(7)), 3, ahead=ahead)
        assert next(batches) == [0, 1, 2]
        assert ahead or len(started) == 3
        assert list(batches) == [[3, 4, 5], [6]]


def test_no_other_place_counts_cores():
    source = Path(calligram.__file__).parent
    named = {
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if re.search(r"cpu_count|sched_getaffinity|ThreadPoolExecutor\(\)", file.read_text(encoding="utf-8"))
    }
    assert named == {"data/pictures.py", "cli/regions.py"}  # which prints the hardware


def test_opencv_uses_one_thread_because_several_threads_call_it():
    cv2 = pytest.importorskip("cv2")
    cv2.setNumThreads(2)
    opencv()
    assert cv2.getNumThreads() == 1


def test_decoded_pictures_are_copied_without_torch(tmp_path, monkeypatch):
    """A copy by torch is split over all cores, which are decoding."""
    visuals = generate_scenes(tmp_path / "scenes", images=12, size=64)
    visuals = visuals.visuals(visuals.images_in("all"))
    source, given = PixelInput(size=32), torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda *_: pytest.fail("a tensor for each picture"))
    rows = source.load(visuals)
    monkeypatch.setattr(torch, "from_numpy", given)
    taken = rows.take(np.array([3, 0, 3]))
    assert taken.dtype == torch.uint8
    for row, pixels in zip((3, 0, 3), taken, strict=True):
        np.testing.assert_array_equal(pixels.numpy(), source.resize(visuals.open(row)))
