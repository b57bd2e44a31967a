"""``calligram serve`` as a process: its address, its names, and its end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from PIL import Image

from calligram.errors import UserError
from calligram.serve import server, service
from calligram.serve.settings import Address, ServerSettings

PLAIN = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def process(library_folder, tmp_path):
    """The command as a user runs it, open to other machines by one name."""
    command = [sys.executable, "-m", "calligram", "serve", library_folder, "--port", "0"]
    public = ["--host", "0.0.0.0", "--open", "--allow-host", "pictures.example"]
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen([*command, *public], stdout=subprocess.PIPE, stderr=errors, text=True, env=PLAIN) as started,
    ):
        yield started
        started.kill()


def test_the_command_prints_its_address_accepts_its_host_names_and_answers_before_it_stops(process, client, tmp_path):
    address = re.search(r"http://[^:]+(:\d+)", process.stdout.readline())
    assert address, (tmp_path / "errors").read_text()
    url = f"http://127.0.0.1{address[1]}"
    with client(url) as asking:
        for host, status in (("pictures.example", 200), ("10.1.2.3:8000", 200), ("other.example", 421)):
            assert asking.get("/api/health", headers={"Host": host}).status_code == status
        Image.new("RGB", (40, 30), "green").save(tmp_path / "a.png")
        picture = {"image": ("a.png", (tmp_path / "a.png").read_bytes())}
        assert asking.post("/api/search", files=picture).status_code == 200  # the first search takes longest
    with socket.create_connection(("127.0.0.1", int(address[1][1:])), timeout=60) as under_way:
        request = httpx.Request("POST", f"{url}/api/search", files=picture)
        headers = {**request.headers, "Expect": "100-continue"}
        head = "POST /api/search HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        under_way.sendall(f"{head}\r\n".encode())
        answer = under_way.makefile("rb")
        assert answer.readline() == b"HTTP/1.1 100 Continue\r\n"  # the server has begun with the request
        process.send_signal(signal.SIGTERM)
        under_way.sendall(request.read())
        assert answer.readline() == b"\r\n"
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
    assert process.wait(60) == 0
    assert "Traceback" not in (tmp_path / "errors").read_text()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)


HEAD = b"Host: 127.0.0.1\r\n"
CLIENTS = {
    "says nothing": b"",
    "stops within a header": b"GET / HTTP/1.1\r\nHo",
    "stops within a body": b"POST /api/search HTTP/1.1\r\nContent-Length: 1000\r\n" + HEAD + b"\r\nabc",
    "keeps its connection": b"GET /api/health HTTP/1.1\r\n" + HEAD + b"\r\n",
    "reads no answers": (b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n") * 3000,
    "waits for long work": b"GET /api/search?q=dog HTTP/1.1\r\n" + HEAD + b"\r\n",
}


def test_a_server_stops_in_seconds_whatever_its_clients_do(library_folder, monkeypatch, capfd):
    monkeypatch.setattr(server, "SHUTDOWN_SECONDS", 1)
    monkeypatch.setattr(service, "WORK_SECONDS", 0.3)
    opened = server.LibraryServer.open(library_folder, Address("127.0.0.1", 0), ServerSettings())
    working, released = threading.Event(), threading.Event()

    def work(*_: object, **__: object) -> None:
        working.set()
        released.wait(240)
        raise UserError("nobody reads this")

    monkeypatch.setattr(opened._service.searcher, "image_batch", work)
    connections = []
    try:
        with opened:
            thread = threading.Thread(target=opened.run, daemon=True)
            thread.start()
            for data in CLIENTS.values():
                connection = socket.create_connection(("127.0.0.1", opened.address.port), timeout=0.5)
                connections.append(connection)
                with contextlib.suppress(TimeoutError):
                    connection.sendall(data)
            assert working.wait(90)
            started = time.monotonic()
            opened.stop()
            thread.join(90)
            took = time.monotonic() - started
        assert not thread.is_alive()
        assert took < 60  # the work takes longer
        assert opened.abandoned
        logged = capfd.readouterr().err
        assert "running task(s)" in logged
        assert "Traceback" not in logged  # for each request that is given up
    finally:
        released.set()
        for connection in connections:
            connection.close()
