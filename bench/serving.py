"""The server over 100,000 items: times and recall of single queries, and a crowd of clients.

Vectors are a mixture as real ones are: each lies near the vector of its caption, and many items share a caption. They
are put into the library directly, since encoding pictures is measured elsewhere; queries go the whole way, words
included.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.device import device_named
from calligram.files import lock_folder
from calligram.models.catalog import load_matcher
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.scenes.generate import generate_scenes
from calligram.search.filters import columns
from calligram.search.indexing.run import open_for_writing
from calligram.search.indexing.writer import LibraryWriter, words_of
from calligram.search.library.matchers import LibraryMatchers, MatcherEncoder, unit_vectors
from calligram.search.query.searcher import Searcher

Row = dict[str, object]
Floats = NDArray[np.float32]
ITEMS, DIM, K = 100_000, 512, 10
CLIENTS, SECONDS, CROWD_SECONDS = 64, 60.0, 20.0
BATCH = 20_000
SETTINGS = [f"dim={DIM}", "epochs=1", "image.size=32", "image.channels=8"]


def make_run(folder: Path) -> tuple[Path, list[str]]:
    """A matcher that was barely trained, and captions to search with."""
    collection = generate_scenes(folder / "scenes", images=400, size=32)
    preset = PRESETS["vse"]
    context = RunContext(device_named("cpu"))
    run_preset(preset, resolve(preset.defaults, SETTINGS), collection, folder / "run", context=context)
    return folder / "run", list(dict.fromkeys(collection.sentences("all").texts.strings))


def mixture(run: Path, captions: Sequence[str]) -> Floats:
    """A vector for each item, at a cosine of about 0.85 to that of its caption."""
    centres = unit_vectors(MatcherEncoder(load_matcher(run)).texts(captions))
    noise = np.random.default_rng(0).normal(scale=0.6 / DIM**0.5, size=(ITEMS, DIM)).astype(np.float32)
    vectors = centres[np.arange(ITEMS) % len(centres)] + noise
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def item(number: int, source: int, captions: Sequence[str]) -> dict[str, object]:
    key = f"album-{number % 40}/{number:06}.jpg"
    texts = [captions[number % len(captions)]]
    about = {"year": 2000 + number % 26, "camera": f"camera {number % 7}"}
    return {
        **{"id": f"item-{number}", "source": source, "key": key, "file": key, "offset": -1, "bytes": 1, "mtime": 1},
        **{"name": f"{number:06}.jpg", "folder": key.split("/")[0], "hash": str(number), "state": "present"},
        **{"width": 640, "height": 480, "metadata": json.dumps(about), "digest": "", "captions": texts},
        "words": words_of(key, tuple(texts)),
    }


def fill(writer: LibraryWriter, root: Path, vectors: Floats, captions: Sequence[str]) -> None:
    source = writer.add_source(root, "folder")
    writer.kinds |= {"year": "number", "camera": "text"}
    for start in range(0, ITEMS, BATCH):
        rows = [item(number, source.number, captions) for number in range(start, min(start + BATCH, ITEMS))]
        filters = columns.table_of([columns.row_of(row, str(root)) for row in rows], writer.kinds)
        writer.images.add([str(row["id"]) for row in rows], vectors[start : start + BATCH], filters)
        writer.tables.put("items", rows)
    writer.commit()
    writer.optimize()


ONE_BY_ONE = "import calligram.serve.batches as batches; batches.MAX_BATCH_SEARCHES = 1; "
"""code that lets a server answer each search alone"""


class Served:
    """The verb in a process of its own.

    Args:
        library: to serve.
        options: of the verb.
        before: code that runs first.
    """

    def __init__(self, library: Path, *options: str, before: str = ""):
        verb = ["-c", f"{before}from calligram.cli.main import main; main()", "serve"]
        command = [sys.executable, *verb, str(library), "--port", "0", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}
        )
        assert self.process.stdout is not None
        found = re.search(r"http://([\d.]+):(\d+)", self.process.stdout.readline())
        assert found is not None
        self.host, self.port = found[1], int(found[2])

    def memory(self, which: str = "VmRSS") -> float:
        """Gigabytes that are resident, or were at most (``VmHWM``)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.search(rf"{which}:\s+(\d+)", status)[1]) / 1e6  # type: ignore[index]

    def close(self) -> None:
        """End it as a user would."""
        self.process.terminate()
        self.process.wait(20)


class Client:
    """As little as possible beside the server: both share two cores."""

    def __init__(self, served: Served):
        self._served = served

    async def connect(self) -> Client:
        """Open the one connection that all its queries go through."""
        self._reader, self._writer = await asyncio.open_connection(self._served.host, self._served.port)
        return self

    async def ask(self, **terms: object) -> tuple[int, bytes, bytes]:
        """Status, head and body of an answer."""
        target = f"/api/search?{urllib.parse.urlencode(terms)}"
        self._writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
        return int(head[9:12]), head, await self._reader.readexactly(length)


async def latencies(served: Served, captions: Sequence[str], **terms: object) -> Floats:
    """Client time less the time of encoding, in milliseconds, of queries one after the other."""
    client, times = await Client(served).connect(), []
    for number, text in enumerate(captions[:1100]):
        began = time.perf_counter()
        status, head, _ = await client.ask(q=text, k=K, all="true", **terms)
        spent = 1000 * (time.perf_counter() - began)
        assert status == 200
        if number >= 100:
            times.append(spent - float(re.search(rb"encode;dur=([\d.]+)", head)[1]))  # type: ignore[index]
    return np.array(times, dtype=np.float32)


async def recall(served: Served, vectors: Floats) -> float:
    """Of the ten items nearest to one, how many are found."""
    client, shares = await Client(served).connect(), []
    for number in np.random.default_rng(1).choice(ITEMS, 300, replace=False):
        _, _, body = await client.ask(like=f"item-{number}", k=K, all="true")
        scores = vectors @ vectors[number]
        scores[number] = -2
        exact = {f"item-{near}" for near in np.argpartition(-scores, K)[:K]}
        shares.append(len(exact & {hit["id"] for hit in json.loads(body)["hits"]}) / K)
    return float(np.mean(shares))


class CrowdTimes(NamedTuple):
    """What clients measured that all ask without a pause."""

    rate: float
    """queries per second"""
    errors: int
    milliseconds: Floats
    """of each query"""


async def crowd(served: Served, captions: Sequence[str], seconds: float) -> CrowdTimes:
    """Let all clients ask without a pause."""
    until, errors = time.perf_counter() + seconds, 0
    times: list[float] = []

    async def one(number: int) -> None:
        nonlocal errors
        client, turn = await Client(served).connect(), number
        while (began := time.perf_counter()) < until:
            status, _, _ = await client.ask(q=captions[turn % len(captions)], k=K, all="true")
            errors += status != 200
            times.append(1000 * (time.perf_counter() - began))
            turn += CLIENTS

    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(CLIENTS)))
    return CrowdTimes(len(times) / (time.perf_counter() - began), errors, np.array(times, dtype=np.float32))


def crowds(library: Path, captions: Sequence[str], row: Callable[[str, float, str], Row]) -> list[Row]:
    """Crowds in front of servers that answer each search alone, in batches, by two processes, and with a memory.

    The clients of the last server repeat a few queries, which it answers from its memory.
    """
    rows = []
    for how, options, before, asked in (
        ("each search alone", ("--remember", "0"), ONE_BY_ONE, captions),
        ("searches in batches", ("--remember", "0"), "", captions),
        ("searches in batches, 2 processes", ("--remember", "0", "--workers", "2"), "", captions),
        ("repeated searches remembered", (), "", captions[: 2 * CLIENTS]),
    ):
        served = Served(library, *options, before=before)
        try:
            asyncio.run(crowd(served, asked, 5))
            found = asyncio.run(crowd(served, asked, CROWD_SECONDS))
        finally:
            served.close()
        name = f"{CLIENTS} clients for {CROWD_SECONDS:.0f} s, {how}"
        rows += [row(f"{name}: queries", found.rate, "1/s"), row(f"{name}: errors", found.errors, "")]
        rows += [row(f"{name}: p{p}", float(np.percentile(found.milliseconds, p)), "ms") for p in (50, 99)]
    return rows


def loop(library: Path, captions: Sequence[str], seconds: float = 15.0) -> float:
    """Queries per second of the searcher alone."""
    searcher = Searcher.open(library)
    for text in captions[:50]:
        searcher.images(text, K, all=True)
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        searcher.images(captions[done % len(captions)], K, all=True)
        done += 1
    return done / (time.perf_counter() - began)


def measured(row: Callable[[str, float, str], Row]) -> list[Row]:
    """All rows; ``row`` prints and keeps one."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run, captions = make_run(folder)
        vectors = mixture(run, captions)
        library = folder / "library"
        with lock_folder(library, "library"):
            began = time.perf_counter()
            fill(
                open_for_writing(library, LibraryMatchers.load(run), folder, None, rebuild=False).writer,
                folder,
                vectors,
                captions,
            )
            name = f"{ITEMS} items of {DIM} dimensions"
            rows = [row(f"{name}: put into a library", ITEMS / (time.perf_counter() - began), "items/s")]
        alone = loop(library, captions)
        rows += crowds(library, captions, row)
        served = Served(library, "--remember", "0")
        try:
            for how, terms in (("", {}), (", by vectors alone", {"hybrid": "false"})):
                times = asyncio.run(latencies(served, captions, **terms))
                for p in (50, 99):
                    what = f"{name}: query through the server{how}, without encoding, p{p}"
                    rows.append(row(what, float(np.percentile(times, p)), "ms"))
            rows.append(row(f"{name}: recall@10 against exact", asyncio.run(recall(served, vectors)), ""))
            asyncio.run(crowd(served, captions, 5))
            before = served.memory()
            rate, errors, _ = asyncio.run(crowd(served, captions, SECONDS))
            rows += [
                row(f"{CLIENTS} clients for {SECONDS:.0f} s: errors", errors, ""),
                row(f"{CLIENTS} clients for {SECONDS:.0f} s: queries", rate, "1/s"),
                row(f"{CLIENTS} clients for {SECONDS:.0f} s: against the searcher in a loop", rate / alone, "ratio"),
                row(f"{CLIENTS} clients for {SECONDS:.0f} s: growth of memory", served.memory() - before, "GB"),
                row(f"{name}: peak memory of the server", served.memory("VmHWM"), "GB"),
            ]
        finally:
            served.close()
    return rows
