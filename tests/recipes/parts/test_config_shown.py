"""What ``calligram show`` prints of the settings."""

from __future__ import annotations

import pytest

from calligram.recipes.catalog import PRESETS, RECIPES
from calligram.recipes.pairs import MATCHER_SETTINGS, PairsSettings
from calligram.recipes.parts.config import (
    resolve,
    settings_fields,
    shown_settings,
)
from calligram.recipes.parts.run_settings import STAGES
from calligram.recipes.parts.terms import TERMS
from calligram.recipes.phrases import PHRASE_MATCHERS, PhrasesSettings

MAX_SHOWN = 45
"""largest number of settings that ``calligram show`` prints for a preset"""
MAX_KEYS = 200
"""largest number of distinct keys of all presets and components"""


@pytest.mark.parametrize("name", PRESETS)
def test_show_prints_few_settings_and_all_that_a_preset_sets(name):
    preset = PRESETS[name]
    shown = shown_settings(preset.defaults, preset.recipe.settings_class(), given=preset.given)
    assert len(shown) <= MAX_SHOWN
    keys = [s.key for s in shown]
    assert len(keys) == len(set(keys))
    present = {s.key for s in settings_fields(preset.defaults, mark_inert=True) if not s.inert}
    assert preset.given & present <= set(keys)
    every = shown_settings(preset.defaults, preset.recipe.settings_class(), rare=True)
    assert {s.key for s in every} == present


def test_there_are_few_distinct_keys():
    found = [preset.defaults for preset in PRESETS.values()]
    found += [recipe.settings_class() for recipe in RECIPES.values()]
    found += [resolve(PairsSettings(), [f"matcher={name}"]) for name in MATCHER_SETTINGS]
    found += [resolve(PairsSettings(), [f"terms={name}"]) for name in TERMS]
    terms = {"two-branch-similarity": "logistic"}
    found += [
        resolve(PhrasesSettings(), [f"matcher={name}", f"terms={terms.get(name, 'neighbourhood')}"])
        for name in PHRASE_MATCHERS
    ]
    # A stage changes the same settings, under keys with its number.
    keys = {s.key for settings in found for s in settings_fields(settings) if not s.key.startswith(f"{STAGES}.")}
    assert len(keys) <= MAX_KEYS


def test_settings_that_a_user_changes_are_shown_and_those_without_effect_are_not():
    def keys(*changes: str) -> set[str]:
        return {s.key for s in shown_settings(resolve(PRESETS["vse"].defaults, changes), PairsSettings())}

    usual = keys()
    assert not {"image.views", "optim.nesterov", "shared", "instance.clusters", "warmup_epochs"} & usual
    assert "image.views" in keys("image.views=flip")
    assert "instance.clusters" in keys("terms=infonce,instance", "instance.clusters=3")
    assert "text.cnn.shifts" in keys("text.network=cnn", "text.cnn.shifts=0")
    assert not {key for key in keys("text.cnn.shifts=0") if key.startswith("text.cnn")}
    assert "warmup_epochs" in keys("terms=ranking")
    assert {"optim.nesterov", "optim.step_epochs"} <= keys(
        "optim.optimizer=sgd", "optim.nesterov=false", "optim.schedule=step"
    )
    assert "offline.share" in keys("terms=offline", "offline.texts=9")
    assert "offline.share" not in keys("terms=offline", "offline.texts=9", "offline.images=9")
