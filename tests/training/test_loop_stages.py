from __future__ import annotations

import pytest
import torch
from torch import nn

from calligram.training.loop import WeightAverage


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
