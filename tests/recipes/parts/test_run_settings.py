"""Settings that all programs share: the optimizer and the learning-rate schedule."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from calligram.errors import UserError
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run_settings import Optimisation


def built(optim):
    return optim.build([{"params": [torch.nn.Parameter(torch.zeros(2))]}])


def test_the_rate_is_divided_by_ten_after_every_so_many_epochs():
    factor = Optimisation(schedule="step", step_epochs=10, warmup=0).factor(25)
    at = [factor(epoch / 25) for epoch in (0, 9.9, 10, 19.9, 20, 24.9)]
    assert at == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    # The number of epochs is that of the stage: in a stage of five epochs, nothing is divided.
    assert Optimisation(schedule="step", step_epochs=10, warmup=0).factor(5)(0.99) == 1
    assert Optimisation(schedule="step", step_epochs=2, warmup=0).factor(5)(0.99) == pytest.approx(0.01)


def test_the_rate_rises_in_the_warm_up_of_every_schedule():
    for schedule in ("cosine", "step", "constant"):
        factor = Optimisation(schedule=schedule, warmup=0.2).factor(10)
        assert [factor(0), factor(0.1), factor(0.2)] == pytest.approx([0, 0.5, 1])
    assert Optimisation(schedule="constant", warmup=0).factor(10)(0.9) == 1
    cosine = Optimisation(schedule="cosine", warmup=0.2).factor(10)
    assert [cosine(0.6), cosine(1.0)] == pytest.approx([0.5, 0], abs=1e-12)
    assert cosine(0.4) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


@pytest.mark.parametrize(("name", "plain"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam)])
def test_the_fused_optimizer_takes_the_steps_of_the_plain_one(name, plain):
    """Also for a convolution whose weights lie channels last: the fused kernel reads memory in order."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    network.to(memory_format=torch.channels_last)
    networks = {"fused": network, "plain": copy.deepcopy(network)}
    optimizers = {
        "fused": Optimisation(optimizer=name, weight_decay=0.1).build([{"params": list(network.parameters())}]),
        "plain": plain(networks["plain"].parameters(), weight_decay=0.1, fused=False, foreach=False),
    }
    assert optimizers["fused"].defaults["fused"]
    for step in range(5):
        images = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(step))
        for way, optimizer in optimizers.items():
            optimizer.param_groups[0]["lr"] = 0.01
            optimizer.zero_grad()
            networks[way](images).square().sum().backward()
            optimizer.step()
    for fused, expected in zip(network.parameters(), networks["plain"].parameters(), strict=True):
        torch.testing.assert_close(fused, expected, rtol=1e-5, atol=1e-6)


def test_momentum_belongs_to_sgd():
    sgd = built(Optimisation(optimizer="sgd", momentum=0.8, nesterov=False, weight_decay=5e-4))
    assert isinstance(sgd, torch.optim.SGD)
    assert {key: sgd.defaults[key] for key in ("momentum", "nesterov", "weight_decay")} == {
        "momentum": 0.8,
        "nesterov": False,
        "weight_decay": 5e-4,
    }
    usual = built(Optimisation(optimizer="sgd"))
    assert (usual.defaults["momentum"], usual.defaults["nesterov"]) == (0.9, True)
    # Nesterov momentum needs momentum.
    assert not built(Optimisation(optimizer="sgd", momentum=0)).defaults["nesterov"]
    for name, kind in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        assert type(built(Optimisation(optimizer=name))) is kind


def test_sgd_steps_as_its_momentum_says():
    """Two steps with gradient 1: the second step of plain momentum is (1 + m) times the first."""

    def path(**settings):
        optimizer = Optimisation(optimizer="sgd", weight_decay=0, **settings).build(
            [{"params": [torch.nn.Parameter(torch.zeros(1))]}]
        )
        group = optimizer.param_groups[0]
        group["lr"], (weight,) = 1.0, group["params"]
        found = []
        for _ in range(2):
            weight.grad = torch.ones(1)
            optimizer.step()
            found.append(-weight.item())
        return found

    assert path(momentum=0.5, nesterov=False) == pytest.approx([1, 2.5])
    assert path(momentum=0.5) == pytest.approx([1.5, 3.25])
    assert path(momentum=0) == pytest.approx([1, 2])


def test_settings_of_other_optimizers_and_schedules_have_no_effect():
    assert Optimisation().inert == {"momentum", "nesterov", "step_epochs"}
    assert not Optimisation(optimizer="sgd", schedule="step").inert


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("optim.step_epochs=0", r"setting optim\.step_epochs takes a whole number from 1"),
        ("optim.momentum=1", r"setting optim\.momentum takes a number from 0 to 0\.9999"),
        ("optim.nesterov=maybe", r"setting optim\.nesterov takes true or false"),
        ("optim.schedule=linear", r"setting optim\.schedule takes cosine or step or constant, got 'linear'"),
        ("optim.lr_scale=image", r"optim\.lr_scale takes NAME:FACTOR separated by commas, got 'image'"),
        ("optim.lr_scale=image:x", r"optim\.lr_scale takes NAME:FACTOR"),
    ],
)
def test_wrong_settings_of_the_optimizer_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        resolve(PRESETS["vse"].defaults, [change])


def test_factors_on_the_learning_rate_are_read_by_part():
    assert Optimisation(lr_scale=("image:0.1", " text.words : 2")).part_lr() == {"image": 0.1, "text.words": 2.0}
    for wrong in ({"accumulate": 0}, {"warmup": 1.0}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            Optimisation(**wrong)
