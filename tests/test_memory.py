"""Memory that is freed is kept for the next tensors, in all threads, until it is returned."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from calligram import memory

WORK = """
import ctypes, json, resource, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from calligram.memory import keep_freed_memory, return_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset.argtypes, libc.free.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), (ctypes.c_void_p,)
MEGABYTES = 200

def use_memory():
    block = libc.malloc(MEGABYTES << 20)
    libc.memset(block, 1, MEGABYTES << 20)
    libc.free(block)

def resident_megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

kept = keep_freed_memory()
with ThreadPoolExecutor(1) as thread:
    thread.submit(use_memory).result()
    use_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        thread.submit(use_memory).result()
        use_memory()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
resident = resident_megabytes()
return_freed_memory()
print(json.dumps({"kept": kept, "faults": faults, "resident": resident, "returned": resident - resident_megabytes()}))
"""
PAGES = (200 << 20) // os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
"""pages that the work above touches each time"""

needs_glibc = pytest.mark.skipif(memory._glibc() is None, reason="the C library is not glibc")


def measured(**variables: str) -> dict[str, int]:
    environment = {name: value for name, value in os.environ.items() if name not in memory.ALLOCATOR_VARIABLES}
    run = subprocess.run(
        [sys.executable, "-c", WORK], env=environment | variables, capture_output=True, text=True, check=True
    )
    found: dict[str, int] = json.loads(run.stdout)
    return found


@needs_glibc
def test_freed_memory_is_used_again_by_all_threads_and_returned_on_request():
    found = measured()
    assert found["kept"]
    assert found["faults"] < PAGES / 10  # 10 uses, and hardly a page was new
    assert found["returned"] > 150


@needs_glibc
@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"])
def test_a_choice_in_the_environment_is_left_as_it_is(name):
    found = measured(**{name: "131072"})
    assert not found["kept"]
    assert found["faults"] > 9 * PAGES
    assert found["resident"] < 150


@needs_glibc
def test_blocks_of_every_size_are_kept_where_the_threshold_is_refused(monkeypatch):
    given = []

    class OldLibrary:
        def mallopt(self, option: int, value: int) -> int:
            given.append((option, value))
            return int(option != memory.MMAP_THRESHOLD)

    for name in memory.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(memory, "_glibc", OldLibrary)
    assert memory.keep_freed_memory.__wrapped__()
    assert (memory.MMAP_MAX, 0) in given


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    assert not memory.keep_freed_memory.__wrapped__()
    memory.return_freed_memory()
