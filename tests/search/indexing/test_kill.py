"""Indexing that is killed at any moment: what was committed stays readable, and the next run goes on."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest

from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers

SCRIPT = """
import os, sys, time
from pathlib import Path
import lancedb, lancedb.index, lancedb.query, torch
from calligram.search.indexing import encode, run
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.vectors import lance
run.COMMIT_ROWS = 6          # many commits, so that a kill falls between, before and into them
encode.BATCH_PICTURES = 3
torch.set_num_threads(1)
models = LibraryMatchers.load(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:            # what is imported once is shared by all that are killed
    child = os.fork()
    if child == 0:
        began = time.perf_counter()
        run.index_source(models, Path(sys.argv[2]), Path(line.strip()))
        print(time.perf_counter() - began, flush=True)
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("over", flush=True)
"""


class Indexer:
    """A process that has everything imported and indexes in children of its own."""

    def __init__(self, process) -> None:
        self.process = process
        assert self._line() == "ready"

    def _line(self) -> str:
        return self.process.stdout.readline().strip()

    def run(self, out, kill_after: float) -> float:
        """Seconds it took; 0 when it was killed."""
        self.process.stdin.write(f"{out}\n")
        self.process.stdin.flush()
        child, took = int(self._line()), 0.0
        time.sleep(kill_after)
        with contextlib.suppress(ProcessLookupError):  # it was done before
            os.kill(child, signal.SIGKILL)
        while (line := self._line()) != "over":
            took = float(line)
        return took


@pytest.fixture
def indexer(small_run, photos, photograph, preloaded):
    for seed in range(12, 48):
        photograph(photos / f"more_{seed}.jpg", seed)
    with preloaded.start(SCRIPT, small_run, photos) as process:
        yield Indexer(process)


def everything(folder):
    """All of a library by path: ids, vectors, thumbnails, words, captions."""
    library = Library.open(folder)
    rows = {row["id"]: row for row in library.rows() if row["state"] == "present"}
    items = library.items(list(rows))
    assert len(library) == len(items) == len(library.images)
    vectors = library.images.vectors(list(rows)) if rows else []
    return {
        item.metadata["path"]: (v, (item.id, library.thumbnail(item.id), item.metadata))
        for item, v in zip(items, vectors, strict=True)
    }


def same(some, all_) -> bool:
    """Whether all of ``some`` is as in ``all_``; a picture encoded beside others may differ in the last place."""
    return all(
        path in all_ and about == all_[path][1] and np.allclose(vector, all_[path][0], atol=2e-3)
        for path, (vector, about) in some.items()
    )


def test_a_library_killed_ten_times_is_the_one_that_was_not(small_run, photos, tmp_path, indexer):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, tmp_path / "timed"):  # the first also pays for what is done once in a process
        began = time.perf_counter()
        index_source(LibraryMatchers.load(small_run), photos, folder)
        seconds = time.perf_counter() - began
    wanted, draw, cut_short = everything(whole), random.Random(0), 0
    while cut_short < 10:
        took = indexer.run(killed, kill_after=draw.uniform(0.0, 0.8) * seconds)
        if (killed / "library.json").is_file():
            assert same(everything(killed), wanted)
        if took:  # it was done before it could be killed: from the beginning again
            shutil.rmtree(killed)
            seconds = max(0.1, 0.8 * seconds)
        cut_short += not took
    index_source(LibraryMatchers.load(small_run), photos, killed)
    assert same(wanted, everything(killed))
    assert index_source(LibraryMatchers.load(small_run), photos, killed).counts["unchanged"] == len(wanted)


def test_a_shard_that_was_killed_continues(small_run, photos, tmp_path):
    index_source(LibraryMatchers.load(small_run), photos, tmp_path / "whole")
    from calligram.search.indexing.shards import Shard, stage_source

    out, models = tmp_path / "sharded", LibraryMatchers.load(small_run)
    stage_source(models, photos, out, Shard(1, 2))
    (folder,) = (out / "staging").glob("*/1-of-2")
    # As a kill leaves it: a piece that was being written.
    (folder / "000007.partial").write_bytes(b"half")
    assert stage_source(models, photos, out, Shard(1, 2)) == 0
    assert not list(folder.glob("*.partial"))
    stage_source(models, photos, out, Shard(2, 2))
    index_source(models, photos, out)
    assert same(everything(tmp_path / "whole"), everything(out))
