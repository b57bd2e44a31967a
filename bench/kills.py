"""Kills of a process that builds or merges the approximate index of a library: nothing is lost, the recall stays.

    python bench/run.py kills

A library has 10,000 made-up vectors, and an approximate index already from that size on. A process adds rows, commits
them, and optimizes. It is killed by SIGKILL at a random time after the commit. Few added rows keep the files of the
index, which get new addresses of their rows; many added rows make it build new files. After each kill the library is
opened as a reader opens it: it must have every committed row, and its search is compared with the exact one.

``tests/search/indexing/test_kill_mapped.py`` does the same with a few kills and real pictures.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rows import Row
from search_index import found_share, large_mixture
from serving import item, make_run

from calligram.files import lock_folder
from calligram.search.filters import columns
from calligram.search.indexing.run import open_for_writing
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.vectors import mapped

KILLS, ITEMS, FEW, MANY, QUERIES, K = 100, 10_000, 50, 1200, 100, 10
MAX_TURNS = 5 * KILLS
CAPTIONS = ("a dog", "a red ball")
SERVER = """
import os, sys
from pathlib import Path
import faiss, lancedb, lancedb.index, lancedb.query, torch
import kills
torch.set_num_threads(1)
faiss.omp_set_num_threads(1)  # threads do not survive a fork
kills.mapped.MAPPED_ROWS = kills.ITEMS
models = kills.LibraryMatchers.load(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    first, count = map(int, line.split())
    child = os.fork()
    if child == 0:
        kills.add(models, Path(sys.argv[2]), first, count)
        print("done", flush=True)
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("over", flush=True)
"""


def add(models: LibraryMatchers, library: Path, first: int, count: int) -> None:
    """Add rows, commit them, say so, and build or merge the index."""
    with lock_folder(library, "library"):
        writer = open_for_writing(library, models, library.parent, None, rebuild=False).writer
        source = writer.add_source(library.parent, "folder")
        writer.kinds |= {"year": "number", "camera": "text"}
        rows = [item(number, source.number, CAPTIONS) for number in range(first, first + count)]
        filters = columns.table_of([columns.row_of(row, str(library.parent)) for row in rows], writer.kinds)
        writer.images.add([str(row["id"]) for row in rows], large_mixture(count, first), filters)
        writer.tables.put("items", rows)
        writer.commit()
        print("committed", flush=True)
        writer.optimize()


class Writers:
    """A process with everything imported, whose children write and are killed."""

    def __init__(self, run: Path, library: Path):
        command = [sys.executable, "-W", "ignore:lancedb fork", "-c", SERVER, str(run), str(library)]
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def write(self, first: int, count: int, seconds: float | None) -> tuple[bool, float]:
        """Let a child add rows, and kill it so long after its commit; whether it was killed, and how long it lived."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{first} {count}\n")
        self.process.stdin.flush()
        lines = [self._line(), self._line()]  # two processes print, in any order
        child, began = int(next(line for line in lines if line.isdigit())), time.perf_counter()
        assert "committed" in lines, lines
        if seconds is not None:
            time.sleep(seconds)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        done = False
        while (line := self._line()) != "over":
            done |= line == "done"
        return not done, time.perf_counter() - began

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def missing_rows(library: Library, count: int) -> int:
    """Rows of the library that are not in a table, or not in the index."""
    wanted = {f"item-{number}" for number in range(count)}
    present = {str(row["id"]) for row in library.rows() if row["state"] == "present"}
    # A search for all rows compares each of them, so it gives the ids that the index has.
    query = large_mixture(1, 1)
    indexed = {hit.id for hit in library.images.search(query, count + 1)[0]}
    return len(wanted - present) + len(wanted - indexed) + len((present | indexed) - wanted)


def recall(library: Library, queries: np.ndarray) -> float:
    """Recall@10 against exact search."""
    return found_share(library.images.search(queries, K), library.images.search(queries, K, exact=True))


def kills(row: Callable[[str, float, str], Row]) -> list[Row]:
    """All rows; ``row`` prints and keeps one."""
    mapped.MAPPED_ROWS = ITEMS
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run, _ = make_run(folder)
        library, queries = folder / "library", large_mixture(QUERIES, 7)
        writers = Writers(run, library)
        try:
            _, seconds = writers.write(0, ITEMS, None)
            before = recall(Library.open(library), queries)
            lost, lowest, killed, count = kill_often(writers, library, queries, seconds)
            writers.write(count, FEW, None)
        finally:
            writers.close()
        opened = Library.open(library)
        lost = max(lost, missing_rows(opened, count + FEW))
        stray = len(stray_files(library, opened))
        after = recall(opened, queries)
    name = f"{killed} kills while an index of {ITEMS} vectors and more is built or merged"
    values = (("rows lost", lost, ""), ("files left over", stray, ""), ("recall@10 before", before, "ratio"))
    values += (("lowest recall@10 after a kill", lowest, "ratio"), ("recall@10 at the end", after, "ratio"))
    return [row(f"{name}: {what}", value, unit) for what, value, unit in values]


def kill_often(writers: Writers, library: Path, queries: np.ndarray, seconds: float) -> tuple[int, float, int, int]:
    """Rows lost, the lowest recall, the number of kills and of rows."""
    draw, count, lost, lowest, killed = random.Random(0), ITEMS, 0, 1.0, 0
    spans = {FEW: seconds, MANY: seconds}
    for _ in range(MAX_TURNS):
        if killed == KILLS:
            break
        added = draw.choice((FEW, FEW, MANY))
        was_killed, lived = writers.write(count, added, draw.uniform(0.0, spans[added]))
        count += added
        killed += was_killed
        if not was_killed:
            spans[added] = lived
        opened = Library.open(library)
        lost, lowest = max(lost, missing_rows(opened, count)), min(lowest, recall(opened, queries))
    return lost, lowest, killed, count


def stray_files(library: Path, opened: Library) -> Sequence[Path]:
    """Mapped files that the manifest does not name."""
    files, record = library / "1" / "index" / "images.mapped", opened.manifest.mapped["index.images"]
    return mapped.unnamed(files, mapped.MappedRecord.from_json(record))
