"""Settings of stages: added and changed by number, checked, and shown."""

from __future__ import annotations

import pytest

from calligram.errors import UserError
from calligram.recipes.catalog import PRESETS
from calligram.recipes.pairs import PairsSettings
from calligram.recipes.parts.config import (
    resolve,
    settings_of_stage,
    shown_settings,
)
from calligram.recipes.parts.run_settings import StageSettings, stage
from calligram.recipes.parts.terms import InfoNCE


def test_stages_are_added_and_changed_by_number():
    found = resolve(PairsSettings(), ["stages.1.epochs=3", "stages.1.name=first", "stages.2.image.train=true"])
    assert found.stages == (
        StageSettings("first", changes=(("epochs", 3),)),
        StageSettings(changes=(("image.train", True),)),
    )
    first, second = (settings_of_stage(found, each) for each in found.stages)
    assert (first.epochs, first.image.train) == (3, False)
    assert (second.epochs, second.image.train) == (found.epochs, True)
    # From Python, the same.
    assert (stage("first", epochs=3), stage(changes={"image.train": True})) == found.stages


def test_a_stage_of_a_preset_is_changed_and_another_added():
    found = resolve(
        PRESETS["aoq"].defaults,
        ["stages.2.on_start=mine", "stages.2.warmup_epochs=0", "stages.2.name=more", "stages.3.without=ranking"],
    )
    assert found.stages == (
        PRESETS["aoq"].defaults.stages[0],
        StageSettings("more", ("ranking",), ("mine",), True, (("warmup_epochs", 0),)),
        StageSettings(without=("ranking",)),
    )
    found = resolve(PRESETS["dual-path"].defaults, ["stages.2.lr=0.01", "stages.2.ranking.weight=2"])
    changes = dict(found.stages[1].changes)
    assert (changes["lr"], changes["epochs"], changes["ranking.weight"]) == (0.01, 8, 2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "stages.4.lr=1",
            r"setting stages\.4\.lr: this run has the stages 1 to 2; give .* where NUMBER 3 adds",
        ),
        ("stages.0.lr=1", "this run has the stages 1 to 2"),
        ("stages.x.lr=1", r"give stages\.NUMBER\.KEY=VALUE"),
        ("stages.lr=1", r"give stages\.NUMBER\.KEY=VALUE"),
        ("stages.1.lrr=1", "unknown setting of a stage 'lrr'; did you mean 'lr'"),
        ("stages.1.on_strat=mine", "unknown setting of a stage 'on_strat'; did you mean 'on_start'"),
        ("stages.1.stages.1.lr=1", "unknown setting of a stage 'stages.1.lr'"),
        ("stages.1.lr=fast", r"setting stages\.1\.lr takes a number from 0 to 1000, got 'fast'"),
        ("stages.1.on_start=mined", r"setting stages\.1\.on_start takes words \(mine, restart\) separated by commas"),
        ("stages.1.dim=8", "dim holds for the whole run, so a stage cannot change it; give dim=VALUE without a stage"),
        ("stages.1.terms=infonce", "terms holds for the whole run"),
        ("stages.1.scan.direction=i2t", "is for matcher=scan, and this run has matcher=vse"),
        ("stages.1.margin=0.1", r"setting margin is now called ranking\.margin"),
    ],
)
def test_wrong_settings_of_stages_say_what_is_accepted(change, message):
    with pytest.raises(UserError, match=message):
        resolve(PRESETS["aoq"].defaults, [change])


def test_a_stage_from_python_is_checked_when_it_is_used():
    settings = PRESETS["vse"].defaults
    for each, message in (
        (stage(lrr=1), "unknown setting of a stage 'lrr'; did you mean 'lr'"),
        (stage(dim=8), "dim holds for the whole run"),
    ):
        with pytest.raises(UserError, match=message):
            settings_of_stage(settings, each)
    # A stage of a preset may change a term that the user removed.
    kept = settings_of_stage(settings, stage(lr=0.5, changes={"ranking.weight": 2.0}))
    assert (kept.lr, kept.terms) == (0.5, (InfoNCE(),))


def test_a_setting_that_every_stage_changes_is_shown_in_the_stages_only():
    def keys(*changes: str) -> set[str]:
        return {s.key for s in shown_settings(resolve(PairsSettings(), changes), PairsSettings())}

    assert {"lr", "stages.1.lr"} <= keys("stages.1.lr=1", "stages.2.epochs=1")
    found = keys("stages.1.lr=1", "stages.2.lr=2")
    assert {"stages.1.lr", "stages.2.lr"} <= found
    assert "lr" not in found
    with pytest.raises(
        UserError, match=r"setting epochs has no effect, because every stage has its own; give stages\.1\."
    ):
        resolve(PRESETS["dual-path-paper"].defaults, ["epochs=3"])
    assert resolve(PRESETS["dual-path"].defaults, ["epochs=3"]).epochs == 3  # of the first stage
