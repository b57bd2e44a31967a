"""What a run folder promises: one trainer at a time, and no complete file lost to a full disk or a kill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from calligram.checksums import sealed
from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.files import LOCK_FILE, lock_folder
from calligram.recipes.parts.run import train_preset
from calligram.training.runs import Run

SMALL = ("batch=14", "dim=16", "image.size=16", "image.channels=4,8", "text.word_dim=8", "text.hidden=16", "epochs=2")


POSITION = {
    **{"stage": 0, "epoch": 1, "batch": 0, "step": 3, "average_steps": 0, "metrics_bytes": 0},
    **{"best": {}, "seconds": 1.5, "scaler": {}},
}


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != LOCK_FILE)
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@pytest.fixture
def trained(tiny: Collection, tmp_path: Path) -> Path:
    train_preset("vse", tiny, tmp_path / "run", *SMALL)
    return tmp_path / "run"


def test_resuming_a_complete_run_changes_no_file_also_on_a_full_disk(tiny, trained, full_disk):
    before = contents(trained)
    best = train_preset("vse", tiny, trained, *SMALL, resume=True)
    with full_disk():
        assert train_preset("vse", tiny, trained, *SMALL, resume=True) == best
    assert contents(trained) == before


def test_a_run_that_cannot_be_resumed_because_the_disk_is_full_still_loads(tiny, trained, full_disk):
    about = json.loads((trained / "run.json").read_text())
    (trained / "run.json").write_text(json.dumps(sealed({k: v for k, v in about.items() if k != "seconds"})))
    before = contents(trained)
    with full_disk(), pytest.raises(OSError, match="too large"):
        train_preset("vse", tiny, trained, *SMALL, resume=True)
    assert contents(trained) == before
    Run.open(trained).load()
    train_preset("vse", tiny, trained, *SMALL, resume=True)
    assert Run(trained).complete


def test_a_state_stays_until_its_replacement_is_whole(tmp_path, full_disk):
    run, values = Run.create(tmp_path / "run", {}), torch.ones(3)
    run.save_state(3, {"matcher": {"weight": values}}, POSITION)
    before = contents(tmp_path)
    with full_disk(), pytest.raises(Exception, match="too large"):
        run.save_state(3, {"matcher": {"weight": values * 2}}, POSITION)
    assert contents(tmp_path) == before
    run.save_state(3, {"matcher": {"weight": values * 2}}, POSITION)
    assert run.load_state()[0]["matcher"]["weight"].tolist() == [2, 2, 2]


def test_a_resumed_run_keeps_only_its_latest_state(tiny, trained):
    before = contents(trained)
    for leftover in ("state/000000001", "state/.000000002.writing-x", "state/000000099", ".inputs.writing-x/new"):
        (trained / leftover).mkdir(parents=True)
        (trained / leftover / "position.json").write_text("{}")
    (trained / ".best.safetensors.partial").write_text("half")
    train_preset("vse", tiny, trained, *SMALL, resume=True)
    assert contents(trained) == before


def test_a_line_of_metrics_that_is_not_complete_is_left_out(tmp_path):
    run = Run.create(tmp_path / "run", {})
    run.log({"step": 1})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert run.metrics() == [{"step": 1}]


def test_a_folder_that_another_process_trains_is_refused_before_anything_is_prepared(tiny, tmp_path):
    with (
        lock_folder(tmp_path / "run", "run"),
        pytest.raises(UserError, match=r"run .*run is being written to by process \d+ on .*; wait until it is done"),
    ):
        train_preset("vse", tiny, tmp_path / "run", *SMALL)
    train_preset("vse", tiny, tmp_path / "run", *SMALL)  # a folder with nothing but a lock file is empty


def test_a_run_that_is_not_created_leaves_no_folder_and_other_folders_stay(tmp_path):
    with pytest.raises(UserError, match="cannot be planned"), Run.lock(tmp_path / "run"):
        raise UserError("cannot be planned")
    (tmp_path / "other").mkdir()
    with Run.lock(tmp_path / "other"):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["other"]
    (tmp_path / "other/letter.txt").touch()
    for path in (tmp_path / "other", tmp_path / "other/letter.txt"):
        with pytest.raises(UserError, match="exists and is not a run folder"), Run.lock(path):
            pass
    assert not (tmp_path / "other" / LOCK_FILE).exists()


def test_a_kill_before_there_is_a_run_leaves_nothing_in_the_way(tiny, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (LOCK_FILE, ".run.json.partial"):
        (folder / name).write_text("{")
    train_preset("vse", tiny, folder, *SMALL, resume=True)
    assert Run(folder).complete
    assert not list(folder.glob("*.partial"))


def _position(state, **changes):
    content = json.loads((state / "position.json").read_text())
    content |= changes
    content = {key: value for key, value in content.items() if value != "missing"}
    (state / "position.json").write_text(json.dumps(sealed(content)))


def _tensors(state, tensors):
    save_file(tensors, state / "matcher.safetensors")


DAMAGE = {
    "LATEST is damaged .it names no state": lambda state: (state.parent / "LATEST").write_bytes(b"\xff\0../"),
    "LATEST is damaged": lambda state: (state.parent / "LATEST").write_text("000000999"),
    r"position.json is damaged .Expecting": lambda state: (state / "position.json").write_text(""),
    "position.json is damaged .epoch must be a whole number from 0": lambda state: _position(state, epoch="1"),
    "position.json is damaged .step is missing": lambda state: _position(state, step="missing"),
    "position.json is damaged .unknown field 'more'": lambda state: _position(state, more=1),
    "position.json is damaged .best.rsum must be a number": lambda state: _position(state, best={"rsum": None}),
    "state is damaged .its tensors do not fit: 'matcher'": lambda state: (state / "matcher.safetensors").unlink(),
    "its tensors do not fit: .*Missing key": lambda state: _tensors(state, {"a": torch.zeros(2)}),
    "its tensors do not fit: .*header": lambda state: (state / "matcher.safetensors").write_bytes(b"{}" * 40),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_a_damaged_state_is_one_line_and_stays(tiny, trained, message):
    (state,) = (file.parent for file in trained.glob("state/*/position.json"))
    (state / "checksums.json").unlink()  # which would notice all of it; an earlier version wrote none
    DAMAGE[message](state)
    metrics = (trained / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match=message) as found:
        train_preset("vse", tiny, trained, *SMALL, resume=True)
    assert "\n" not in str(found.value)
    assert "drops the state" in str(found.value)
    assert state.is_dir()
    assert (trained / "metrics.jsonl").read_bytes() == metrics


def test_a_state_is_compared_with_its_checksums(tiny, trained):
    (file,) = trained.glob("state/*/matcher.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"matcher.safetensors is damaged .its content is not what was written"):
        train_preset("vse", tiny, trained, *SMALL, resume=True)
