"""Processes that are forked from a server with all imports done."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from calligram.studies import row_server
from calligram.studies.claims import Row
from calligram.studies.row_server import RowProcess, RowServer
from calligram.studies.rows import RowJob

PROBE = """
import json, os, sys, time
import torch
from calligram.data.pictures import core_share
from calligram.errors import UserError
values = {
    "share": core_share(), "cores": len(os.sched_getaffinity(0)),
    "main": sys.modules["__main__"].__spec__.name, "process": os.getpid(), "server": os.getppid(),
    "threads": torch.get_num_threads(), "variable": os.environ["OMP_NUM_THREADS"], "cuda": torch.cuda.is_initialized(),
    "mps": os.environ.get("CUDA_MPS_PIPE_DIRECTORY"),
}
print(json.dumps(values), file=sys.stderr, flush=True)
if os.path.basename(__file__) == "wait.py":
    time.sleep(600)
raise UserError("no row")
"""


NO_ROW = {"error": "no row", "out_of_memory": False, "gpu_fault": False}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(row_server, "ROW_MODULES", ())
    monkeypatch.setattr(row_server, "imported_modules", list)
    for name in ("probe.py", "wait.py"):
        (tmp_path / name).write_text(PROBE)
    return tmp_path


def started(server: RowServer, number: int, folder: Path, name: str = "probe.py") -> RowProcess:
    """Start a process that imports one of the files above instead of training a row."""
    with (folder / f"{number}.log").open("ab") as log:
        process = server.start(number, log)
    job = RowJob("paper", Row("new", "vse"), 0, "tiny", folder, folder).as_json()
    given = {"job": job, "collection": str(folder), "device": "cpu", "imports": [str(folder / name)], "processes": 2}
    process.stdin.write(json.dumps(given) + "\n")
    process.stdin.flush()
    return process


def probed(folder: Path, number: int) -> dict[str, object]:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        lines = (folder / f"{number}.log").read_text().splitlines()
        if found := [line for line in lines if line.startswith("{") and line.endswith("}")]:
            return json.loads(found[0])
        time.sleep(0.02)
    raise TimeoutError((folder / f"{number}.log").read_text())


def is_there(process: int) -> bool:
    """Whether a process runs; one that has ended may wait for its parent to notice."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def has_ended(process: int) -> bool:
    deadline = time.monotonic() + 60
    while is_there(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_there(process)


def test_processes_of_rows_have_one_thread_and_outlive_nobody(folder):
    with RowServer() as server:
        first, second = (started(server, number, folder) for number in (0, 1))
        assert [json.loads(line) for line in first.stdout] == [
            {"error": "no row", "out_of_memory": False, "gpu_fault": False}
        ]
        assert (first.wait(), second.wait()) == (1, 1)
        values = probed(folder, 0)
        assert values["main"] == "calligram.studies.row_server"
        assert (values["threads"], values["variable"], values["cuda"]) == (1, "1", False)
        assert values["share"] == max(1, values["cores"] // 2)
        assert values["server"] == probed(folder, 1)["server"]
        killed, _ = (started(server, number, folder, "wait.py") for number in (2, 3))
        os.kill(probed(folder, 2)["process"], signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
        other = probed(folder, 3)["process"]
        assert is_there(other)
    assert has_ended(other)
    assert has_ended(values["server"])


def test_processes_after_a_gpu_fault_do_not_use_mps(folder):
    with RowServer() as server:
        server.environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folder)}
        assert started(server, 0, folder).wait() == 1
        server.isolate()
        assert started(server, 1, folder).wait() == 1
    assert [probed(folder, number)["mps"] for number in (0, 1)] == [str(folder), "/dev/null"]


def test_the_end_of_the_server_ends_no_row_and_the_next_row_has_a_new_one(folder):
    with RowServer() as server:
        running = started(server, 0, folder, "wait.py")
        values = probed(folder, 0)
        os.kill(values["server"], signal.SIGKILL)
        assert running.wait() is None
        assert is_there(values["process"])
        server._server.wait()
        assert started(server, 1, folder).wait() == 1
        assert probed(folder, 1)["server"] != values["server"]
    assert has_ended(values["process"])


def test_a_process_that_cannot_use_cuda_after_the_fork_becomes_a_new_interpreter(folder, monkeypatch):
    (folder / "uses_cuda.py").write_text("import torch\ntorch.cuda._is_in_bad_fork = lambda: True\n")
    monkeypatch.setattr(row_server, "ROW_MODULES", ("uses_cuda", "no.such.module"))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with RowServer() as server:
        process = started(server, 0, folder)
        assert [json.loads(line) for line in process.stdout] == [
            {"error": "no row", "out_of_memory": False, "gpu_fault": False}
        ]
        assert process.wait() == 1
    values = probed(folder, 0)
    assert values["main"] == "calligram.studies.rows"
    assert (values["threads"], values["variable"]) == (1, "1")


def test_modules_of_this_process_that_rows_may_use():
    names = row_server.imported_modules()
    assert "calligram.recipes.parts.run" in names
    assert not [name for name in names if name.startswith(("calligram.cli", "calligram.serve", "calligram.search"))]
