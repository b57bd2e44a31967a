"""Which rows run at the same time, with processes that this file plays; the service by which they share a GPU."""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from calligram.studies import row_pool, row_server
from calligram.studies.catalog import STUDIES
from calligram.studies.claims import Row
from calligram.studies.row_pool import RowPool, RowState, default_workers, row_gpu_bytes
from calligram.studies.row_server import multi_process_service
from calligram.studies.rows import RowJob, first_sentence, is_gpu_fault, is_out_of_memory

GIB = 1 << 30
FAULT = {"error": "AcceleratorError: CUDA error: an illegal memory access was encountered", "gpu_fault": True}
FULL = {"error": "OutOfMemoryError: CUDA out of memory", "out_of_memory": True}
RESULT = {"result": {
    "settings": {}, "i2t": {}, "t2i": {}, "recipe": "vse", "seed": 0,
    "collection": "c", "split": "test", "rsum": 1.0, "seconds": 1.0, "hardware": "h",
    "commit": "c", "command": "x",
}}  # fmt: skip
SERVICE = """#!/bin/sh
read line
echo "$@$line $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY $CUDA_VISIBLE_DEVICES" >> "{calls}"
exit {status}
"""


def job(folder: Path, name: str, *changes: str, preset: str = "vse") -> RowJob:
    return RowJob("paper", Row(name, preset, changes), 0, "tiny", folder, folder)


class PlayedServer:
    """Plays the processes of rows: they end in the order in which they started, when ``end`` is called."""

    def __init__(self, rows: list[RowState], messages: dict[str, list[dict]]) -> None:
        self.environment: dict[str, str] = {}
        self._names = [row.job.row.name for row in rows]
        self._messages = messages
        self.started: list[tuple[str, tuple[str, ...]]] = []
        """each row that started, with the others that ran then"""
        self._running: dict[str, int] = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def isolate(self):
        assert not self._running
        self.started.append(("without MPS", ()))

    def start(self, number, log):
        name = self._names[number]
        self.started.append((name, tuple(self._running)))
        read, write = os.pipe()
        self._running[name] = write
        code = 0 if "result" in self._messages[name][0] else 1
        return PlayedProcess(os.fdopen(read), code)

    def end(self, count: int, heard: queue.Queue) -> None:
        for name in list(self._running)[:count]:
            before = heard.qsize()
            with os.fdopen(self._running.pop(name), "w") as output:
                output.write(json.dumps(self._messages[name].pop(0)) + "\n")
            while heard.qsize() < before + 2:  # its message and its end: the next row ends after it
                time.sleep(0.001)


class PlayedProcess:
    def __init__(self, stdout, code):
        self.stdin, self.stdout, self._code = io.StringIO(), stdout, code

    def wait(self):
        return self._code

    def close(self):
        self.stdout.close()


def run_pool(rows: list[RowState], messages: dict[str, list[dict]], *, workers: int = 9, at_once: int = 1, **options):
    """Run rows whose processes end when nothing else happens: ``at_once`` of them at the same time."""
    seen: dict[str, list[str]] = defaultdict(list)
    said: list[str] = []
    pool = RowPool(rows, Path("collection"), workers, torch.device("cpu"), say=said.append, **options)
    pool._server = server = PlayedServer(rows, messages)

    def watch(states):
        for row in states:
            if seen[row.job.row.name][-1:] != [row.doing or row.state]:
                seen[row.job.row.name].append(row.doing or row.state)
        if pool._messages.empty() and len(server._running) == len(pool._processes):
            server.end(at_once, pool._messages)

    pool.run(lambda row: said.append(row.outcome), lambda: True, watch)
    return server.started, seen, said


def test_rows_wait_until_their_estimates_fit_the_memory(tmp_path, monkeypatch):
    needs = {"large": 26, "small": 6, "small too": 6, "huge": 99}
    monkeypatch.setattr(row_pool, "row_gpu_bytes", lambda job: needs[job.row.name] * GIB)
    rows = [RowState(job(tmp_path, name)) for name in needs]
    started, seen, _ = run_pool(rows, {name: [RESULT] for name in needs}, memory=32 * GIB)
    assert started == [
        ("large", ()), ("small", ("large",)), ("small too", ("small",)), ("huge", ()),
    ]  # fmt: skip
    assert seen["small too"] == ["waits for GPU memory", "start", "done"]
    assert seen["huge"][0] == "waits for GPU memory"
    assert [row.state for row in rows] == ["done"] * 4


def test_on_a_cpu_all_workers_are_used(tmp_path):
    rows = [RowState(job(tmp_path, name)) for name in "abc"]
    started, _, _ = run_pool(rows, {name: [RESULT] for name in "abc"}, workers=2)
    assert started == [("a", ()), ("b", ("a",)), ("c", ("b",))]


def test_a_row_without_memory_starts_again_with_half_as_many_others(tmp_path):
    names = "abcdefg"
    rows = [RowState(job(tmp_path, name)) for name in names]
    messages = {name: [RESULT] for name in names} | {"a": [FULL, RESULT]}
    started, seen, said = run_pool(rows, messages, workers=5)
    assert [name for name, _ in started] == [*names[:5], "f", "g", "a"]
    assert len(started[-1][1]) == 2  # four others ran before
    assert seen["a"] == ["start", "waits for GPU memory", "start", "done"]
    assert said[0] == "paper: a, seed 0: waits for GPU memory"
    assert [row.state for row in rows] == ["done"] * 7


def test_no_row_starts_next_to_a_row_that_ran_out_of_memory(tmp_path):
    rows = [RowState(job(tmp_path, name, *needed)) for name, needed in (("a", ()), ("b", ()), ("c", ("x=row:b",)))]
    messages = {"a": [FULL, RESULT], "b": [RESULT], "c": [RESULT]}
    started, _, _ = run_pool(rows, messages, at_once=2)
    assert [name for name, _ in started] == ["a", "b", "a", "c"]
    assert [others for _, others in started[2:]] == [(), ()]


def test_two_rows_may_run_out_of_memory_at_once_and_a_row_fails_the_second_time(tmp_path):
    rows = [RowState(job(tmp_path, name)) for name in "ab"]
    messages = {"a": [FULL, RESULT], "b": [FULL, FULL]}
    started, _, said = run_pool(rows, messages, at_once=2)
    assert started == [("a", ()), ("b", ("a",)), ("a", ()), ("b", ())]
    assert [row.state for row in rows] == ["done", "failed"]
    assert said[-1] == "paper: b, seed 0: failed: OutOfMemoryError: CUDA out of memory"


def test_after_a_gpu_fault_rows_start_again_without_mps_when_all_have_ended(tmp_path):
    rows = [RowState(job(tmp_path, name)) for name in "abcd"]
    messages = {"a": [FAULT, FAULT], "b": [FAULT, RESULT], "c": [RESULT], "d": [RESULT]}
    started, seen, said = run_pool(rows, messages, workers=3)
    assert started == [
        ("a", ()), ("b", ("a",)), ("c", ("a", "b")), ("without MPS", ()),
        ("a", ()), ("b", ("a",)), ("d", ("a", "b")),
    ]  # fmt: skip
    assert seen["b"] == ["start", "starts again after a GPU fault", "start", "done"]
    assert said[0] == "a GPU fault ends all rows that share the GPU by MPS; they start again without MPS"
    assert [row.state for row in rows] == ["failed", "done", "done", "done"]


def test_a_row_that_is_alone_and_has_a_gpu_fault_fails_at_once(tmp_path):
    rows = [RowState(job(tmp_path, "a"))]
    started, _, _ = run_pool(rows, {"a": [FAULT]})
    assert started == [("a", ())]
    assert rows[0].state == "failed"


def test_a_row_that_is_alone_and_has_no_memory_fails_at_once(tmp_path):
    rows = [RowState(job(tmp_path, "a"))]
    started, _, _ = run_pool(rows, {"a": [FULL]})
    assert len(started) == 1
    assert rows[0].state == "failed"


@pytest.mark.parametrize(
    ("preset", "changes", "expected"),
    [
        ("vse", (), 6),
        ("vse", ("image.backbone=vit",), 6),
        ("vse", ("image.backbone=vit", "image.train=true", "batch=256"), 30),
        ("vse", ("image.backbone=vit", "image.train=true", "batch=256", "image.size=448"), 120),
        ("vse", ("image.backbone=vit", "image.train=true", "batch=256", "image.region_dropout=0.5"), 22.5),
        ("vse", ("image.backbone=vit", "image.train=true", "batch=16"), 6),
        ("vse", ("matcher=vse,vse", "image.backbone=vit", "image.train=true", "batch=256"), 33),
        ("vse", ("matcher=vse,vse", "image.backbone=vit", "image.train=true", "batch=256", "shared=true"), 30),
        ("bfan", ("image.backbone=vit", "text.encoder=minilm", "text.train=true"), 10),
        ("dual-path", ("image.backbone=vit", "stages.2.batch=256"), 30),
        ("pretrained", ("pretrained.model=clip", "batch=256"), 30),
        ("cca", (), 6),
        ("two-branch-phrases", (), 6),
    ],
)
def test_memory_is_estimated_from_settings(tmp_path, preset, changes, expected):
    assert row_gpu_bytes(job(tmp_path, "row", *changes, preset=preset)) == expected * GIB


@pytest.mark.parametrize("paper", STUDIES)
def test_every_row_of_a_study_has_an_estimate(paper, tmp_path, monkeypatch):
    monkeypatch.setenv("CALLIGRAM_ASSETS", str(tmp_path))
    for row in STUDIES[paper].rows:
        assert row_gpu_bytes(RowJob(paper, row, 0, "c", tmp_path, tmp_path)) >= 6 * GIB


def test_the_default_number_of_rows_is_one_for_each_core(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert (default_workers(40), default_workers(3)) == (16, 3)


def test_the_error_of_a_row_is_one_short_line():
    text = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.80 GiB.\nSee the log."
    assert first_sentence(text) == "CUDA out of memory"
    assert first_sentence("file a.b.json has 1.5 columns; give 2\nmore") == "file a.b.json has 1.5 columns; give 2"
    assert len(first_sentence("x" * 2000)) == 240
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert is_gpu_fault(RuntimeError("CUDA error: an illegal memory access was encountered\nSearch for"))
    assert is_gpu_fault(RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 807: MPS server is not ready"))
    assert not is_gpu_fault(RuntimeError("CUDA error: out of memory"))


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """A program on PATH that plays the control program of the service; returns a function that reads its calls."""

    def install(status: int = 0) -> Path:
        program = tmp_path / "bin" / row_server.MPS_PROGRAM
        program.parent.mkdir(exist_ok=True)
        program.write_text(SERVICE.format(calls=tmp_path / "calls", status=status))
        program.chmod(0o755)
        return tmp_path / "calls"

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(row_server.MPS_VARIABLE, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(row_server, "MPS_SOCKET", tmp_path / "control")
    monkeypatch.setattr(row_server, "CUDA_CHECK", "")
    return install


CUDA = torch.device("cuda")


def test_the_service_runs_as_long_as_the_rows_and_only_they_use_it(calls):
    file, said = calls(), []
    folder = ""

    def interrupted() -> None:
        nonlocal folder
        with multi_process_service(CUDA, 2, said.append) as environment:
            folder = environment["CUDA_MPS_PIPE_DIRECTORY"]
            assert Path(folder).is_dir()
            assert len(folder) < 40
            assert "CUDA_VISIBLE_DEVICES" not in environment  # the service has applied it
            assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
            assert file.read_text() == f"-d {folder} {folder} 1\n"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.read_text().splitlines()[1:] == [f"quit {folder} {folder} 1"]
    assert not Path(folder).exists()
    assert said == ["rows share the GPU by MPS"]


@pytest.mark.parametrize("reason", ["cpu", "one row", "too many rows", "service", "variable", "no program"])
def test_no_service_is_started(calls, reason, tmp_path, monkeypatch):
    file = tmp_path / "calls" if reason == "no program" else calls()
    if reason == "service":
        (tmp_path / "control").touch()
    if reason == "variable":
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/elsewhere")
    device = torch.device("cpu") if reason == "cpu" else CUDA
    count = {"one row": 1, "too many rows": 49}.get(reason, 12)
    said: list[str] = []
    with multi_process_service(device, count, said.append) as environment:
        assert environment is os.environ
    assert not file.exists()
    assert not said


@pytest.mark.parametrize("part", ["program", "check"])
def test_rows_run_without_a_service_that_does_not_start(calls, part, monkeypatch):
    file, said = calls(status=int(part == "program")), []
    monkeypatch.setattr(row_server, "CUDA_CHECK", "assert False")
    with multi_process_service(CUDA, 2, said.append) as environment:
        assert environment is os.environ
    assert said == ["MPS does not start here; rows take turns on the GPU"]
    assert file.read_text().splitlines()[-1].startswith("quit ")


def test_a_killed_command_leaves_no_service(calls, tmp_path):
    file = calls()
    program = f"""
import time, torch
from calligram.studies import row_server
row_server.CUDA_CHECK, row_server.MPS_SOCKET = "", row_server.Path({str(tmp_path / "control")!r})
with row_server.multi_process_service(torch.device("cuda"), 2, print):
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 240
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while len(file.read_text().splitlines()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [line.split()[0] for line in file.read_text().splitlines()] == ["-d", "quit"]


def test_the_pool_gives_the_environment_of_the_service_to_its_processes(calls, tmp_path):
    file = calls()
    rows = [RowState(job(tmp_path, name)) for name in "ab"]
    pool = RowPool(rows, Path("collection"), 2, CUDA)
    pool._server = server = PlayedServer(rows, {name: [RESULT] for name in "ab"})
    pool.run(lambda row: None, lambda: True, lambda states: server.end(2, pool._messages))
    assert row_server._row_environment(server.environment)["CUDA_MPS_PIPE_DIRECTORY"] in file.read_text()
    assert [row.state for row in rows] == ["done", "done"]
