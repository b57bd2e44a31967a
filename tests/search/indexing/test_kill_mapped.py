"""A writer that is killed while it builds or updates the files of a large library: nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time

import numpy as np
import pytest

from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.vectors import mapped

KILLS = 10
LIMIT = 10
SCRIPT = """
import os, sys
from pathlib import Path
import faiss, lancedb, lancedb.index, lancedb.query, torch
from calligram.search.indexing import run, writer
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.vectors import lance, mapped
mapped.MAPPED_ROWS = int(sys.argv[3])
torch.set_num_threads(1)
faiss.omp_set_num_threads(1)  # threads do not survive a fork
models, optimize = LibraryMatchers.load(sys.argv[1]), writer.LibraryWriter.optimize
def announced(*arguments, **options):
    print("optimizing", flush=True)
    optimize(*arguments, **options)
writer.LibraryWriter.optimize = announced
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run.index_source(models, Path(sys.argv[2]), Path(line.strip()))
        print("done", flush=True)
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("over", flush=True)
"""


@pytest.fixture
def writer_process(small_run, photos, preloaded):
    with preloaded.start(SCRIPT, small_run, photos, LIMIT) as process:
        assert process.stdout.readline() == "ready\n"
        yield process


def killed(process, out, seconds: float) -> bool:
    """Index, and kill the writer so long after its last commit of pictures; whether it was not done before."""
    process.stdin.write(f"{out}\n")
    process.stdin.flush()
    lines = [process.stdout.readline().strip() for _ in range(2)]  # two processes print, in any order
    child = int(next(line for line in lines if line.isdigit()))
    assert "optimizing" in lines
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    done = False
    while (line := process.stdout.readline().strip()) != "over":
        done |= line == "done"
    return not done


def check(folder, count: int) -> None:
    """All pictures are there, and found by the search that scores each of them."""
    library = Library.open(folder)
    ids = [row["id"] for row in library.rows() if row["state"] == "present"]
    assert len(ids) == len(library) == len(library.images) == count
    vectors = library.images.vectors(ids)
    hits = library.images.search(vectors[:5], count)
    scores = vectors[:5] @ vectors.T
    for found, row in zip(hits, scores, strict=True):
        assert {hit.id for hit in found} == set(ids)
        assert np.allclose([hit.score for hit in found], np.sort(row)[::-1], atol=2e-3)  # half precision
    best = [ids.index(hits[0].id) for hits in library.images.search(vectors, 1)]
    # A picture finds itself, or one with the same vector up to half precision.
    assert np.allclose((vectors[best] * vectors).sum(1), (vectors * vectors).sum(1), atol=2e-3) or count < LIMIT


def test_kills_while_files_are_written_lose_nothing(
    models, photos, tmp_path, photograph, writer_process, monkeypatch, contents
):
    monkeypatch.setattr(mapped, "MAPPED_ROWS", LIMIT)
    out, draw, number, cut_short, turns, seconds = tmp_path / "library", random.Random(0), 12, 0, 0, 0.5
    while cut_short < KILLS:
        turns += 1
        assert turns < 8 * KILLS
        for _ in range(draw.choice((1, 1, 6))):  # few: new addresses; many: new files
            photograph(photos / f"more_{number}.jpg", number)
            number += 1
        was_killed = killed(writer_process, out, draw.uniform(0.0, seconds))
        cut_short += was_killed
        seconds = seconds if was_killed else max(0.05, 0.8 * seconds)
        check(out, number)
    index_source(models, photos, out)
    check(out, number)
    library = Library.open(out)
    assert library.images.recall >= 0.98
    record = library.manifest.mapped["index.images"]
    files = out / "1" / "index" / "images.mapped"
    assert [folder.name for folder in files.iterdir()] == [record["folder"]]
    assert {file.name for file in (files / record["folder"]).iterdir()} == {*record["sizes"], record["addresses"]}
    whole = tmp_path / "whole"
    index_source(models, photos, whole)
    assert {path: vector for path, (_, vector) in contents(out).items()}.keys() == contents(whole).keys()
