"""``calligram serve --workers``: real processes, some of which are killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from calligram.data.collection import Collection
from calligram.data.draft import Draft, ImageRecord, PictureFile
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.serve.server import ServerProcesses
from calligram.serve.settings import Address, ServerSettings

PLAIN = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
TOKEN = "correct horse battery"
PATIENT = {"timeout": 60, "trust_env": False, "verify": False}
"""how a client asks: for up to a minute, because by default httpx waits for 5 s; certificates take long to load"""
LOST = (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteError)
"""errors of a client whose process is killed"""


@contextmanager
def serving(library: Path, folder: Path, *options: object) -> Iterator[SimpleNamespace]:
    """The command with two processes, as a user runs it."""
    command = [sys.executable, "-m", "calligram", "serve", library, "--port", "0", "--workers", "2", *options]
    errors = folder / "errors"
    with (
        errors.open("w") as stream,
        subprocess.Popen(map(str, command), stdout=subprocess.PIPE, stderr=stream, text=True, env=PLAIN) as process,
    ):
        address = re.search(r"http://[^:]+:(\d+)", process.stdout.readline())
        assert address, errors.read_text()
        try:
            yield SimpleNamespace(process=process, url=f"http://127.0.0.1:{address[1]}", errors=errors)
        finally:
            process.kill()


def get(url: str, path: str, **params: object) -> httpx.Response:
    """One request over a connection of its own."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx.get(f"{url}{path}", params=params, headers=headers, **PATIENT)


def process_of(url: str) -> int:
    """The process that answers this time."""
    return int(float(re.search(r"^calligram_process_id (\S+)", get(url, "/metrics").text, re.M)[1]))


def processes(url: str, count: int, seconds: float = 180) -> set[int]:
    """Ask until so many processes have answered."""
    found, until = set(), time.monotonic() + seconds
    while len(found) < count:
        with ThreadPoolExecutor(8) as pool:
            for one in pool.map(lambda _: _or_none(lambda: process_of(url)), range(16)):
                found |= {one} - {None}
        found = {one for one in found if _lives(one)}
        assert time.monotonic() < until, found
    return found


def _or_none(work):
    try:
        return work()
    except LOST:
        return None


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_dead(chosen: set[int], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while any(map(_lives, chosen)):
        assert time.monotonic() < end, chosen
        time.sleep(0.05)


def test_other_processes_answer_while_one_is_killed_and_replaced(library_folder, tmp_path):
    with serving(library_folder, tmp_path) as served:
        first = processes(served.url, 2)
        assert served.process.pid not in first
        expected = get(served.url, "/api/search", q="a dog", all=True).json()["hits"]
        stop, killed = threading.Event(), threading.Event()
        after: list[int] = []

        def ask(number: int) -> int:
            """Ask without a pause; the number of requests that got no answer."""
            lost = 0
            while not stop.is_set():
                try:
                    answer = get(served.url, "/api/search", q="a dog", all=True, k=48 + number % 2)
                except LOST:
                    lost += 1
                    continue
                assert answer.status_code == 200, answer.text
                assert answer.json()["hits"][:48] == expected
                if killed.is_set():
                    after.append(number)
            return lost

        with ThreadPoolExecutor(8) as pool:
            asking = [pool.submit(ask, number) for number in range(8)]
            time.sleep(0.5)
            victim = min(first)
            os.kill(victim, signal.SIGKILL)
            until_dead({victim})
            killed.set()
            until = time.monotonic() + 90
            while len(set(after)) < 8:  # each client gets answers again
                assert time.monotonic() < until, after
                time.sleep(0.02)
            second = processes(served.url, 2)
            stop.set()
            lost = sum(future.result() for future in asking)
        assert lost <= 8  # at most the requests that the victim was answering
        assert victim not in second
        assert len(second & first) == 1
        assert f"process {victim} of the server ended (exit code -9); another one starts" in served.errors.read_text()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(90) == 0
        until_dead(second)
        assert "Traceback" not in served.errors.read_text()


def test_the_token_holds_in_all_processes_and_each_caption_is_stored_once(library_folder, served_run, tmp_path):
    scenes, draft = Collection.open(served_run / "scenes"), Draft("captions")
    for row in range(20):
        (tmp_path / f"{row}.png").write_bytes(scenes.pictures.read(row))
        draft.images.append(ImageRecord(f"scene {row}", PictureFile(tmp_path / f"{row}.png"), "train"))
    collection = write_draft(draft, tmp_path / "collection").folder
    with serving(library_folder, tmp_path, "--collection", collection, "--token", TOKEN) as served:
        found = processes(served.url, 2)

        def write(number: int) -> bool:
            body = {"id": f"scene {number % 20}", "text": f"Caption {number % 40} of a scene."}
            assert httpx.post(f"{served.url}/api/captions", json=body, **PATIENT).status_code == 401
            headers = {"Authorization": f"Bearer {TOKEN}"}
            answer = httpx.post(f"{served.url}/api/captions", json=body, headers=headers, **PATIENT)
            assert answer.status_code == 200, answer.text
            return answer.json()["added"]

        with ThreadPoolExecutor(8) as pool:
            added = list(pool.map(write, range(80)))  # each caption twice
        login = httpx.post(f"{served.url}/api/login", json={"token": TOKEN}, **PATIENT)
        for _ in range(8):  # the cookie of one process is accepted by the other
            assert httpx.get(f"{served.url}/api/stats", cookies=login.cookies, **PATIENT).status_code == 200
        served.process.kill()
        until_dead(found)  # they end with their parent
        with pytest.raises(httpx.ConnectError):
            get(served.url, "/api/health")
    assert sum(added) == 40
    kept = Collection.open(collection).column("captions", "text")
    assert sorted(kept) == sorted(f"Caption {number} of a scene." for number in range(40))


def test_a_library_that_cannot_be_served_is_one_line_of_error(library_folder, served_run, tmp_path):
    library = tmp_path / "library"
    with pytest.raises(UserError, match="is not a library"):
        ServerProcesses.open(library, Address("127.0.0.1", 0), ServerSettings(processes=2))
    shutil.copytree(library_folder, library)
    manifest = library / "library.json"
    edited = json.loads(manifest.read_text().replace(str(served_run / "run"), str(served_run / "nothing")))
    del edited["checksum"]
    manifest.write_text(json.dumps(edited))
    with pytest.raises(UserError, match=r"the matcher of .* cannot be loaded"):  # a process says so
        ServerProcesses.open(library, Address("127.0.0.1", 0), ServerSettings(processes=1))
