"""Old names of settings are refused with their present name."""

from __future__ import annotations

import pytest

from calligram.errors import UserError
from calligram.models.old_settings import RENAMED_SETTINGS, present_key
from calligram.recipes.catalog import PRESETS, RECIPES
from calligram.recipes.pairs import MATCHER_SETTINGS, PairsSettings
from calligram.recipes.parts.config import (
    from_plain,
    resolve,
    settings_fields,
    settings_of_stage,
)
from calligram.recipes.parts.run_settings import stage
from calligram.recipes.parts.terms import TERMS


def test_the_old_name_of_a_setting_is_refused_with_its_present_name(tmp_path):
    everything = resolve(PairsSettings(), [f"matcher={','.join(n for n in MATCHER_SETTINGS if n != 'pretrained')}"])
    everything = resolve(everything, [f"terms={','.join(TERMS)}"])
    present = {setting.key for setting in settings_fields(everything)}
    assert not set(RENAMED_SETTINGS) & present
    others = {s.key for recipe in RECIPES.values() for s in settings_fields(recipe.settings_class())}
    for old, new in RENAMED_SETTINGS.items():
        # A name that is a key by itself must be one that exists.
        if not {" ", "="} & set(new) and not new.startswith("stages."):
            assert new in present | others | {"pretrained.model"}, old
    for preset, change, message in (
        ("vse", "image.hide=0.2", r"setting image\.hide is now called image\.region_dropout"),
        ("vse", "loss=ranking", "setting loss is now called terms, such as terms=ranking"),
        ("scan", "margin=0.1", r"setting margin is now called ranking\.margin"),
        ("aoq", "mined.texts=300", r"setting mined\.texts is now called offline\.texts"),
        ("aoq", "fine_tune=true", r"setting fine_tune is now called stages\.2\.on_start=mine"),
        ("a3vse", "adversary.intra=0,0", r"setting adversary\.intra is now called adversarial\.intra"),
        ("two-branch", "constraint_epochs=3", r"constraint_epochs is now called a stage: stages\.NUMBER\.KEY=VALUE"),
        ("dual-path", "preset=paper", "setting preset is now called a preset of its own, such as dual-path-paper"),
        ("best", "ensemble_members=mmca", "is now called matcher, with several names"),
        ("distil", "teacher=x", r"setting teacher is now called distillation\.teacher"),
        ("tags", "least=0.1", "setting least is now called min_probability"),
    ):
        with pytest.raises(UserError, match=message):
            resolve(PRESETS[preset].defaults, [change])
    file = tmp_path / "settings.toml"
    file.write_text("[first.optim]\nparts = []\n")
    with pytest.raises(UserError, match=r"setting first\.optim\.parts is now called stages\.1\.optim\.lr_scale"):
        resolve(PRESETS["dual-path"].defaults, [], file)
    assert present_key("second.batch") == "stages.2.batch"
    # Recipe ensemble never had a setting "members", so the new name would be refused too.
    with pytest.raises(UserError, match="unknown setting 'members'"):
        resolve(PRESETS["ensemble"].defaults, ["members=a,b"])


@pytest.mark.parametrize("old", RENAMED_SETTINGS)
def test_every_old_name_gets_its_message_in_a_recipe_that_has_the_present_one(old):
    messages = set()
    for name, recipe in RECIPES.items():
        if any(old == setting.key for setting in settings_fields(recipe.settings_class())):
            continue  # alpha of combined
        with pytest.raises(UserError) as refused:
            resolve(recipe.settings_class(), [f"{old}=1"])
        messages.add(str(refused.value))
        with pytest.raises(UserError) as refused:
            resolve(recipe.settings_class(), [f"stages.1.{old}=1"])
        stages = name in ("pairs", "phrases")
        assert ("has no stages" in str(refused.value)) != stages
    assert f"setting {old} is now called {RENAMED_SETTINGS[old]}" in messages
    assert all("is now called" in message or f"unknown setting '{old}'" in message for message in messages)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("hard.texts", r"setting hard\.texts is now called offline\.texts"),
        ("margin", r"setting margin is now called ranking\.margin, offline\.margin or neighbourhood\.margin"),
        ("second.lr", r"setting second\.lr is now called stages\.2\.lr"),
    ],
)
def test_the_old_name_of_a_setting_of_a_stage_is_refused_with_its_present_name(key, message):
    with pytest.raises(UserError, match=message):
        resolve(PRESETS["aoq"].defaults, [f"stages.1.{key}=1"])
    with pytest.raises(UserError, match=message):
        settings_of_stage(PRESETS["aoq"].defaults, stage(changes={key: 1}))


def test_settings_of_an_unknown_key_in_a_run_file_are_ignored():
    settings = from_plain(PRESETS["vse"].defaults, {"average": 0.5, "text": {"blank": 0.2, "hidden": 8}, "seed": 3})
    assert (settings.ema_decay, settings.text.word_dropout) == (0.99, 0.0)
    assert (settings.text.hidden, settings.seed) == (8, 3)
