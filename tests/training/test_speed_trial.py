"""A trial finds the fastest way to take steps."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from calligram import device as switches
from calligram.models.layers import towers
from calligram.recipes.parts.run import train_preset
from calligram.training import cuda_graphs, loop, speed_trial
from calligram.training.batches import batch
from calligram.training.objectives import caption
from calligram.training.runs import Run


class Clock:
    """Time that passes in steps of a trial: each way has its own."""

    def __init__(self, monkeypatch, **seconds):
        self.now, self.seconds = 0.0, seconds
        monkeypatch.setattr(speed_trial.time, "perf_counter", lambda: self.now)

    def run(self, trial, steps, work=lambda: None):
        ways = []
        for _ in range(steps):
            with trial.step():
                way = speed_trial.Way(switches._GRAPHS.on, switches._COMPILE.on)
                work()
                self.now += self.seconds[way.name.replace(" and ", "_")]
                ways.append(way.name)
        return ways


def trial_of(owner, steps, *, graphs=True, tf32=False):
    reports = []
    trial = speed_trial.SpeedTrial(owner, steps, torch.device("cpu"), graphs=graphs, tf32=tf32, report=reports.append)
    return trial, reports


@pytest.mark.parametrize("tf32", [False, True])
def test_steps_alone_take_products_in_tf32_and_the_run_records_it(monkeypatch, tf32, trained):
    clock, found = Clock(monkeypatch, plain=0.001), []
    trial, reports = trial_of(trained().objective, 20, tf32=tf32)
    assert clock.run(trial, 20, lambda: found.append(torch.backends.cuda.matmul.allow_tf32)) == ["plain"] * 20
    assert found == [tf32] * 20
    assert not torch.backends.cuda.matmul.allow_tf32
    assert ("products" in reports[0]) == tf32


@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize(("seconds", "chosen"), [(0.02, "graphs"), (0.08, "plain")])
def test_a_trial_selects_graphs_where_they_are_faster(monkeypatch, seconds, chosen, trained):
    found, clock = trained(), Clock(monkeypatch, plain=0.04, graphs=seconds)
    trial, reports = trial_of(found.objective, 1000)

    def work():
        torch.autograd.backward(sum(found.objective(found.matcher, found.batch()).values()))

    ways = clock.run(trial, 60, work)
    assert ways[:13] == ["plain"] * 13
    assert ways[13:26] == ["graphs"] * 13
    assert ways[26:39] == ["plain"] * 13
    assert set(ways[39:]) == {chosen}
    assert reports == [{"chosen": chosen, "milliseconds": {"plain": 40.0, "graphs": 1000.0 * seconds}}]
    assert not switches._GRAPHS.on


@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize(("factor", "chosen"), [(4.0, "graphs"), (0.25, "plain")])
def test_a_machine_that_changes_its_speed_does_not_change_the_choice(monkeypatch, factor, chosen, trained):
    """Other runs begin, or end, before the second way is timed."""
    fast, slow = {"plain": 0.04, "graphs": 0.03}, {"plain": 0.04, "graphs": 0.06}
    seconds = fast if chosen == "graphs" else slow
    found, clock = trained(), Clock(monkeypatch, **seconds)
    trial, reports = trial_of(found.objective, 1000)

    def work():
        torch.autograd.backward(sum(found.objective(found.matcher, found.batch()).values()))

    assert set(clock.run(trial, 13, work)) == {"plain"}
    clock.seconds = {name: factor * each for name, each in seconds.items()}
    assert clock.run(trial, 60, work)[-1] == reports[0]["chosen"] == chosen


@pytest.mark.parametrize(("share", "tried"), [(0.05, True), (0.2, False)])
def test_a_trial_tries_graphs_where_they_keep_little_memory(monkeypatch, share, tried):
    monkeypatch.setattr(speed_trial.SpeedTrial, "_memory_share", lambda trial: share)
    trial, _ = trial_of(torch.nn.Linear(1, 1), 1000)
    assert ("graphs" in Clock(monkeypatch, plain=0.2, graphs=0.01).run(trial, 100)) == tried


@pytest.mark.parametrize(
    ("steps", "graphs", "step_seconds"),
    [(1000, False, 0.04), (100, True, 0.01), (5, True, 100.0), (13, True, 100.0)],
)
def test_a_trial_tries_nothing_where_it_cannot_pay(monkeypatch, steps, graphs, step_seconds):
    clock = Clock(monkeypatch, plain=step_seconds)
    trial, reports = trial_of(torch.nn.Linear(1, 1), steps, graphs=graphs)
    assert set(clock.run(trial, steps)) == {"plain"}
    assert [report["chosen"] for report in reports] == ["plain"]


def test_a_trial_gives_up_graphs_of_shapes_that_do_not_repeat(monkeypatch):
    clock = Clock(monkeypatch, plain=0.04, graphs=0.01)
    trial, reports = trial_of(torch.nn.Linear(1, 1), 1000)
    ways = clock.run(trial, 200)
    assert ways.count("graphs") == speed_trial.MAX_TRIAL_STEPS
    assert ways[-1] == "plain"
    assert reports == [{"chosen": "plain", "milliseconds": {"plain": 40.0}}]


def test_a_trial_gives_up_graphs_at_once_where_a_capture_fails(monkeypatch, trained):
    def broken(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs, "capture", broken)
    monkeypatch.setattr(switches, "GRAPH_DEVICE_TYPE", "cpu")
    found, clock = trained(), Clock(monkeypatch, plain=0.04, graphs=0.01)
    trial, reports = trial_of(found.objective, 1000)
    ways = clock.run(trial, 40, lambda: found.objective(found.matcher, found.batch()))
    assert ways.count("graphs") == cuda_graphs.CAPTURE_AT_COUNT
    assert reports == [{"chosen": "plain", "milliseconds": {"plain": 40.0}}]


@pytest.mark.parametrize(
    ("asked", "steps", "tried"),
    [([60], 2000, True), ([], 2000, False), ([60], 200, False), ([20], 200, True), ([20, 60, 20], 200, False)],
)
def test_a_trial_compiles_long_stages_with_anything_to_compile(monkeypatch, asked, steps, tried):
    clock = Clock(monkeypatch, plain=1.0, compiled=0.5)
    trial, reports = trial_of(torch.nn.Linear(1, 1), steps, graphs=False)
    ways = clock.run(trial, 100, lambda: [switches.compile_enabled(seconds) for seconds in asked])
    assert ways[-1] == reports[0]["chosen"] == ("compiled" if tried else "plain")


OFFLINE = ["matcher=vsrn", "terms=ranking,offline", "offline.texts=4", "offline.images=3", "vsrn.norm=features"]


@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize(
    ("preset", "changes"), [("vse", ["warmup_epochs=6"]), ("aoq", ["warmup_epochs=0", "epochs=3", *OFFLINE])]
)
def test_a_run_records_the_chosen_way_and_takes_the_same_steps_as_a_plain_run(
    tiny, tmp_path, monkeypatch, preset, changes, again
):
    for module in (loop, batch, caption, towers):
        monkeypatch.setattr(module, "GRAPH_DEVICE_TYPE", "cpu")
    monkeypatch.setattr("calligram.recipes.parts.run.device_named", lambda: torch.device("cpu"))  # also beside a GPU
    for name, value in {"GRAPH_MIN_SECONDS": 0.0, "WARMUP_STEPS": 1, "TIMED_STEPS": 3}.items():
        monkeypatch.setattr(speed_trial, name, value)
    settings = ["image.size=16", "image.channels=4,8", "dim=8", "text.word_dim=4", "text.hidden=8", "text.dropout=0.2"]
    settings += ["epochs=6", "batch=4", "texts=1", "epoch_of=pairs", *changes]
    weights = {}
    for speed in ("auto", "plain"):
        train_preset(preset, tiny, tmp_path / speed, *settings, f"speed={speed}")
        weights[speed] = load_file(tmp_path / speed / "best.safetensors")
    recorded = {speed: Run(tmp_path / speed).about.get("speed") for speed in weights}
    assert recorded["plain"] is None
    assert list(recorded["auto"]) == list(dict.fromkeys(row["stage"] for row in Run(tmp_path / "auto").metrics()))
    for found in recorded["auto"].values():
        assert set(found["milliseconds"]) == {"plain", "graphs"}
        assert found["chosen"] == min(found["milliseconds"], key=found["milliseconds"].get)
    torch.testing.assert_close(weights["auto"], weights["plain"], atol=1e-4, rtol=1e-3)
    assert again.made
