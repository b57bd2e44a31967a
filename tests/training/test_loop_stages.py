from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from calligram.models.catalog import WEIGHTS_FILE
from calligram.training import runs
from calligram.training.loop import WeightAverage
from calligram.training.runs import BackgroundSaver, Run

ON_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
POSITION = {"stage": 0, "epoch": 0, "batch": 0, "average_steps": 0, "best": {}, "seconds": 0.0, "scaler": {}}


def test_the_weight_average_follows_its_recurrence_and_copies_counters():
    module = nn.BatchNorm1d(2)
    average = WeightAverage(module, 0.5)
    expected = module.weight.detach().clone()
    for step in range(6):
        with torch.no_grad():
            module.weight.add_(1.0)
            module.num_batches_tracked.add_(1)
        average.update(module)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * module.weight.detach()
    torch.testing.assert_close(average.weights["weight"], expected)
    assert average.weights["num_batches_tracked"] == 6


def test_a_decay_out_of_range_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1, got 1"):
        WeightAverage(nn.Linear(1, 1), 1.0)


@pytest.mark.parametrize("room", [0.0, 0.1])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_CUDA)])
def test_states_are_saved_as_they_were_at_the_call(tmp_path, device, room, monkeypatch):
    monkeypatch.setattr(runs, "MAX_COPY_SHARE", room)
    run = Run.create(tmp_path / "run", {})
    weight = torch.zeros(4, 3, 2, 2, device=device).to(memory_format=torch.channels_last)
    with BackgroundSaver(run) as saver:
        for step in range(1, 4):
            weight.fill_(step)
            run.log({"step": step})
            saver.save_best({"weight": weight})
            saver.save_state(step, {"matcher": {"weight": weight}}, {**POSITION, "step": step})
            run.log({"step": "later"})
            weight.fill_(-1)
    tensors, position = run.load_state()
    assert position["step"] == 3
    assert tensors["matcher"]["weight"].unique().tolist() == [3.0]
    assert run.metrics()[-1] == {"step": 3}  # what was logged after the call is cut off


def test_large_states_are_left_out_after_some_epochs_and_the_best_weights_are_not_lost(tmp_path, monkeypatch):
    """Saving a state takes 5 seconds of this clock, so the next one after an epoch is due 50 seconds later."""
    clock, seconds, real = [1000.0], [5.0], Run.save_state

    def slow(self, step, tensors, position):
        real(self, step, tensors, position)
        clock[0] += seconds[0]

    monkeypatch.setattr(Run, "save_state", slow)
    monkeypatch.setattr(runs.time, "monotonic", lambda: clock[0])
    run = Run.create(tmp_path / "run", {})

    def end_epoch(saver, step, batch=0):
        weights = {"weight": torch.full((2,), float(step))}
        saver.save_best(weights)
        saver.save_state(step, {"matcher": weights}, {**POSITION, "step": step, "epoch": step, "batch": batch})
        while saver._pending:
            saver._pending.pop(0).result()

    def stored():
        return run.load_state()[1]["step"], int(load_file(run.folder / WEIGHTS_FILE)["weight"][0])

    with BackgroundSaver(run) as saver:
        end_epoch(saver, 1)
        assert stored() == (1, 1)
        clock[0] += 40
        end_epoch(saver, 2)
        assert stored() == (1, 1)
        clock[0] += 10
        end_epoch(saver, 3)
        assert stored() == (3, 3)
        end_epoch(saver, 4)
        assert stored() == (3, 3)
        seconds[0] = 0.5
        end_epoch(saver, 5, batch=7)  # the user wants states within an epoch
        assert stored() == (5, 5)
        end_epoch(saver, 6)  # the last one was quick
        assert stored() == (6, 6)
        seconds[0] = 5.0
        end_epoch(saver, 7)
        end_epoch(saver, 8)
        assert stored() == (7, 7)
        saver.wait()
        assert stored() == (7, 8)
        end_epoch(saver, 9)
    assert stored() == (7, 9)


def test_a_save_that_fails_stops_training(tmp_path):
    run = Run.create(tmp_path / "run", {})
    (tmp_path / "run" / "state").write_text("a file where the folder should be", encoding="utf-8")
    with BackgroundSaver(run) as saver:
        saver.save_state(1, {"matcher": {}}, {})
        with pytest.raises(OSError, match="state"):
            saver.wait()
