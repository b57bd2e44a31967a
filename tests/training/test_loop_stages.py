from __future__ import annotations

import pytest
import torch
from torch import nn

from calligram.training.loop import WeightAverage
from calligram.training.runs import BackgroundSaver, Run

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


def test_states_are_saved_as_they_were_at_the_call(tmp_path):
    run, weight = Run.create(tmp_path / "run", {}), torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last)
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


def test_a_save_that_fails_stops_training(tmp_path):
    run = Run.create(tmp_path / "run", {})
    (tmp_path / "run" / "state").write_text("a file where the folder should be", encoding="utf-8")
    with BackgroundSaver(run) as saver:
        saver.save_state(1, {"matcher": {}}, {})
        with pytest.raises(OSError, match="state"):
            saver.wait()
