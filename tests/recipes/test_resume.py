"""A killed run continues with the weights of terms that a stage leaves out and later stages have."""

from __future__ import annotations

import pytest
import torch

from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.training.loop import _Trainer
from calligram.training.runs import Run

SMALL = (
    "image.features=colour", "batch=6", "dim=16", "text.word_dim=8", "text.hidden=16", "text.min_count=1",
    "ema_decay=0", "lr=0.01", "epochs=2",
)  # fmt: skip
SKIPPED = ("terms=infonce,instance", "instance.init=random", "stages.2.without=instance")
WARM = ("terms=ranking", "warmup_loss=infonce", "warmup_epochs=1", "stages.1.name=first", "stages.2.name=second")
ADVERSARY = (
    "terms=infonce,adversarial", "warmup_epochs=0", "stages.2.without=adversarial", "adversarial.hidden=5", "steps=4",
    "pseudo.region_source=finder", "sparse.images=0.5", "a3vse.context=8",
)  # fmt: skip
THREE = ("stages.1.name=first", "stages.2.name=second", "stages.3.name=third")


def run(preset, collection, out, *changes, resume=False):
    settings = resolve(PRESETS[preset].defaults, [*SMALL, *changes])
    run_preset(PRESETS[preset], settings, collection, out, resume=resume, context=RunContext(torch.device("cpu")))


@pytest.mark.parametrize(
    ("preset", "changes", "place"),
    [
        ("vse", (*THREE, *SKIPPED), (1, 1)),
        ("vse", (*THREE, *SKIPPED), (1, 0)),
        ("vse", WARM, (1, 0)),
        ("a3vse", (*THREE, *ADVERSARY), (1, 1)),
    ],
)
def test_a_killed_run_ends_with_the_same_weights(spoken_tiny, tmp_path, monkeypatch, preset, changes, place):
    run(preset, spoken_tiny, tmp_path / "whole", *changes)

    def dies(self, number, epoch, optimizer, real=_Trainer._end_epoch):
        if (number, epoch) == place:
            raise KeyboardInterrupt
        return real(self, number, epoch, optimizer)

    with monkeypatch.context() as patched:
        patched.setattr(_Trainer, "_end_epoch", dies)
        with pytest.raises(KeyboardInterrupt):
            run(preset, spoken_tiny, tmp_path / "killed", *changes)
    run(preset, spoken_tiny, tmp_path / "killed", *changes, resume=True)
    whole, killed = (Run(tmp_path / name).load()[0].state_dict() for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    losses = [[row["loss"] for row in Run(tmp_path / name).metrics() if "loss" in row] for name in ("whole", "killed")]
    assert losses[0] == losses[1]
