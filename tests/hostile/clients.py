"""64 clients of a server, first alone, then with 5% hostile requests: what do the others notice?

    python tests/hostile/clients.py [SECONDS] [QUIET_SECONDS]

Ordinary clients search, and load items and thumbnails. Hostile requests are malformed, too large, too slow, or sent by
a client that asks too much. Ordinary requests must all be answered with 200. The 99th percentile of their times may be
at most three times that of the quiet phase, and the memory of the server must not grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path

import httpx
import numpy as np

CLIENTS, HOSTILE_SHARE = 64, 0.05
WORDS = [
    "dog",
    "cat",
    "red",
    "blue",
    "beach",
    "snow",
    "man",
    "woman",
    "two",
    "three",
    "small",
    "tall",
    "house",
    "tree",
    "with",
    "on",
    "under",
    "near",
]
PAUSE_SECONDS = 0.5
"""between two requests of a client, as a person would wait"""
MAX_RATIO, MAX_GROWTH = 3.0, 1.1
TOKEN = b"GET /api/search?q=dog HTTP/1.1\r\n"


class Phase:
    """Times and statuses of ordinary requests."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.errors: Counter[str] = Counter()
        self.hostile: Counter[str] = Counter()

    @property
    def p99(self) -> float:
        """The 99th percentile of the times."""
        return float(np.percentile(self.seconds, 99))


async def ordinary(client: httpx.AsyncClient, draw: random.Random, ids: list[str], phase: Phase) -> None:
    """One request of an ordinary client."""
    kind = draw.random()
    if kind < 0.6:
        path, terms = "/api/search", {"q": " ".join(draw.choices(WORDS, k=draw.randrange(1, 6))), "k": 12}
    else:
        path, terms = ("/api/item" if kind < 0.8 else "/api/thumbnail"), {"id": draw.choice(ids)}
    started = time.perf_counter()
    try:
        answer = await client.get(path, params=terms)
        status = str(answer.status_code)
    except httpx.HTTPError as error:
        status = type(error).__name__
    phase.seconds.append(time.perf_counter() - started)
    if status != "200":
        phase.errors[f"{path} {status}"] += 1


async def raw(port: int, data: bytes, wait: float = 2.0) -> None:
    """Send bytes, and read whatever comes."""
    with contextlib.suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            await writer.drain()
            await asyncio.wait_for(reader.read(65_536), wait)
        finally:
            writer.close()


def hostile_bytes(draw: random.Random) -> tuple[str, bytes]:
    """The kind and the bytes of a hostile request."""
    host = b"Host: 127.0.0.1\r\n"
    post = b"POST /api/embed HTTP/1.1\r\nContent-Type: application/json\r\n" + host + b"Content-Length: "
    kinds: dict[str, Callable[[], bytes]] = {
        "random bytes": lambda: os.urandom(draw.randrange(1, 3000)),
        "half a header": lambda: TOKEN + host[:9],
        "many headers": lambda: TOKEN + host + b"X: y\r\n" * 3000 + b"\r\n",
        "a long line": lambda: b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        "another host": lambda: TOKEN + b"Host: evil.example\r\n\r\n",
        "a long query": lambda: b"GET /api/search?q=" + b"a" * 9000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        "many hits": lambda: b"GET /api/search?q=a&k=99999999 HTTP/1.1\r\n" + host + b"\r\n",
        "a condition": lambda: b"GET /api/search?q=a&where=" + b"((" * 900 + b" HTTP/1.1\r\n" + host + b"\r\n",
        "a path": lambda: b"GET /../../etc/passwd HTTP/1.1\r\n" + host + b"\r\n",
        "a promised body": lambda: b"POST /api/search HTTP/1.1\r\nContent-Length: 999999999999\r\n" + host + b"\r\nx",
        "deep JSON": lambda: post + b"50000\r\n\r\n" + b"[" * 50_000,
        "a negative length": lambda: post + b"-5\r\n\r\n{}",
        "costly requests": lambda: b"".join(
            b"GET /api/export?id=x HTTP/1.1\r\nX-Forwarded-For: 10.0.0.9\r\n" + host + b"\r\n" for _ in range(30)
        ),
    }  # fmt: skip
    kind = draw.choice(sorted(kinds))
    return kind, kinds[kind]()


async def run_clients(url: str, seconds: float, share: float, seed: int) -> Phase:
    """All clients for some time."""
    phase, port = Phase(), int(url.rpartition(":")[2])
    end, limits = time.monotonic() + seconds, httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False, verify=False) as client:
        ids = [hit["id"] for hit in (await client.get("/api/browse", params={"k": 100})).json()["hits"]]

        async def one(number: int) -> None:
            draw = random.Random(seed * 1000 + number)
            await asyncio.sleep(draw.uniform(0, PAUSE_SECONDS))
            while time.monotonic() < end:
                if draw.random() < share:
                    kind, data = hostile_bytes(draw)
                    phase.hostile[kind] += 1
                    await raw(port, data)
                else:
                    await ordinary(client, draw, ids, phase)
                await asyncio.sleep(draw.uniform(0, 2 * PAUSE_SECONDS))

        tasks: list[Coroutine[None, None, None]] = [one(number) for number in range(CLIENTS)]
        await asyncio.gather(*tasks)
    return phase


def memory(url: str) -> float:
    """Megabytes of the server."""
    text = httpx.get(f"{url}/metrics", trust_env=False, verify=False).text
    found = re.search(r"resident_memory_bytes ([\d.e+]+)", text)
    return float(found[1]) / 1e6 if found else 0.0


def main() -> None:
    """Run both phases; the exit code is 1 if ordinary clients noticed the hostile requests."""
    given = [float(word) for word in sys.argv[1:3]]
    seconds, quiet_seconds = (*given, *(600.0, 120.0)[len(given) :])
    from calligram.data.collection import Collection
    from calligram.recipes.parts.run import train_preset
    from calligram.scenes.generate import generate_scenes
    from calligram.search.indexing.run import index_source
    from calligram.search.library.matchers import LibraryMatchers

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        generate_scenes(work / "scenes", images=400, size=64)
        small = "epochs=1", "dim=64", "image.size=32", "text.hidden=32", "text.word_dim=32"
        train_preset("vse", Collection.open(work / "scenes"), work / "run", *small)
        index_source(LibraryMatchers.load(work / "run"), work / "scenes", work / "library")
        command = [sys.executable, "-m", "calligram", "serve", str(work / "library"), "--port", "0"]
        serving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert serving.stdout is not None
            found = re.search(r"http://[\d.]+:\d+", serving.stdout.readline())
            assert found is not None
            code = _compare(found[0], seconds, quiet_seconds)
        finally:
            serving.terminate()
            serving.wait()
    sys.exit(code)


def _compare(url: str, seconds: float, quiet_seconds: float) -> bool:
    asyncio.run(run_clients(url, quiet_seconds / 4, HOSTILE_SHARE, 1))  # to fill caches, in which memory may grow
    quiet = asyncio.run(run_clients(url, quiet_seconds, 0.0, 2))
    before = memory(url)
    busy = asyncio.run(run_clients(url, seconds, HOSTILE_SHARE, 3))
    after = memory(url)
    for name, phase in (("quiet", quiet), ("hostile", busy)):
        median = 1000 * float(np.median(phase.seconds))
        print(
            f"{name:8} {len(phase.seconds):6} ordinary requests, median {median:.0f} ms, p99 {1000 * phase.p99:.0f} ms,"
        )
        print(f"         errors: {dict(phase.errors)}, hostile requests: {phase.hostile.total()}")
    ratio, growth = busy.p99 / quiet.p99, after / before
    print(f"p99 ratio {ratio:.2f} (at most {MAX_RATIO:g}), memory {before:.0f} to {after:.0f} MB")
    return bool(busy.errors) or ratio > MAX_RATIO or growth > MAX_GROWTH


if __name__ == "__main__":
    main()
