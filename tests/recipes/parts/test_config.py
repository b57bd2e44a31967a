from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from calligram.errors import UserError
from calligram.recipes.catalog import RECIPES, find_recipe
from calligram.recipes.parts.config import (
    RENAMED_SETTINGS,
    as_plain,
    changed,
    from_plain,
    resolve,
    settings_fields,
    translate_run,
    with_present_changes,
)


@dataclass(frozen=True)
class Inner:
    rate: Annotated[float, "how fast"] = 0.5
    sizes: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Outer:
    epochs: Annotated[int, "how long"] = 3
    kind: Literal["a", "b"] = "a"
    flag: bool = False
    limit: int | None = 4
    name: str = ""
    kinds: tuple[Literal["c", "d"], ...] = ()
    inner: Inner = field(default_factory=Inner)


def test_values_are_read_by_their_type():
    found = resolve(
        Outer(), ["epochs=5", "kind=b", "flag=yes", "limit=none", "name=x=y", "inner.rate=1e-3", "inner.sizes=4,5,6"]
    )
    assert found == Outer(5, "b", True, None, "x=y", (), Inner(0.001, (4, 5, 6)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("epoch=3", "unknown setting 'epoch'; did you mean 'epochs'"),
        ("inner.rat=3", "did you mean 'inner.rate'"),
        ("epochs=many", "setting epochs takes a whole number, got 'many'"),
        ("epochs=1.5", "setting epochs takes a whole number"),
        ("kind=c", "setting kind takes a or b, got 'c'"),
        ("flag=perhaps", "setting flag takes true or false"),
        ("inner.sizes=1,x", "whole numbers separated by commas"),
        ("kinds=c,foo", r"setting kinds takes words \(c, d\) separated by commas, got 'c,foo'"),
        ("limit=x", "a whole number or none"),
        ("epochs", "--set takes key=value, got 'epochs'"),
    ],
)
def test_wrong_settings_say_what_is_accepted(change, message):
    with pytest.raises(UserError, match=message):
        resolve(Outer(), [change])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("epochs=inf", "setting epochs takes a whole number"),
        ("lr=-1", "setting lr takes a number from 0 to 1000, got '-1'"),
        ("lr=nan", "setting lr takes a number"),
        ("image.crop=2", "setting image.crop takes a number from 0.01 to 1, got '2'"),
        ("image.size=-5", "setting image.size takes a whole number from 0 to 4096"),
        ("image.channels=0", "setting image.channels takes whole numbers separated by commas from 1"),
        ("image.channels=", "image.channels needs at least one number of channels"),
        ("ema_decay=2", "setting ema_decay takes a number from 0 to"),
        ("warmup_epochs=-1", "setting warmup_epochs takes"),
        ("seed=99999999999999999999999", "setting seed takes"),
        ("text.train=true", "text.train=true needs a text.encoder"),
        ("text.pooling=cls", "text.pooling=cls needs a text.encoder"),
        ("optim.clip=-1", "setting optim.clip takes"),
    ],
)
def test_values_out_of_range_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        resolve(RECIPES["vse"].defaults, [change])


def test_a_file_comes_before_the_command_line(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('epochs = 7\nkind = "b"\n[inner]\nrate = 2\nsizes = [9]\n')
    assert resolve(Outer(), ["epochs=8"], file) == Outer(8, "b", inner=Inner(2.0, (9,)))
    file.write_text("epochs = [")
    with pytest.raises(UserError, match="could not be read"):
        resolve(Outer(), [], file)


def test_settings_survive_json_and_differences_are_listed():
    settings = resolve(Outer(), ["inner.sizes=3", "limit=none"])
    assert from_plain(Outer(), as_plain(settings)) == settings
    assert changed(settings, Outer()) == {"inner.sizes": (3,), "limit": None}


@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_of_every_recipe_is_described_and_epochs_and_seed_are_there(name):
    fitted_at_once = name in ("cca", "combined", "ensemble", "tags")
    found = settings_fields(RECIPES[name].defaults)
    assert not [f.key for f in found if not f.description]
    keys = {f.key for f in found}
    assert "seed" in keys
    assert fitted_at_once or keys & {"epochs", "first.epochs"}


def test_an_unknown_recipe_suggests_the_nearest():
    with pytest.raises(UserError, match="unknown recipe 'vsee'; did you mean 'vse'"):
        find_recipe("vsee")


def test_the_old_name_of_a_setting_is_refused_with_its_present_name(tmp_path):
    recipes = [recipe.defaults for recipe in RECIPES.values()]
    present = {setting.key for defaults in recipes for setting in settings_fields(defaults)}
    assert set(RENAMED_SETTINGS.values()) <= present
    assert not set(RENAMED_SETTINGS) & present
    with pytest.raises(UserError, match=r"setting image\.hide is now called image\.region_dropout"):
        resolve(RECIPES["vse"].defaults, ["image.hide=0.2"])
    file = tmp_path / "settings.toml"
    file.write_text("[first.optim]\nparts = []\n")
    with pytest.raises(UserError, match=r"setting first\.optim\.parts is now called first\.optim\.lr_scale"):
        resolve(RECIPES["dual-path"].defaults, [], file)
    # Recipe ensemble never had a setting "members", so the new name would be refused too.
    with pytest.raises(UserError, match="unknown setting 'members'"):
        resolve(RECIPES["ensemble"].defaults, ["members=a,b"])


def test_settings_written_under_old_names_are_translated():
    old = {"average": 0.5, "text": {"blank": 0.2, "hidden": 8}, "optim": {"parts": ["image:0.1"]}, "seed": 3}
    settings = from_plain(RECIPES["vse"].defaults, old)
    assert (settings.ema_decay, settings.text.word_dropout, settings.text.hidden) == (0.5, 0.2, 8)
    assert (settings.optim.lr_scale, settings.seed) == (("image:0.1",), 3)
    assert translate_run({"recipe": "vse", "settings": old}) == {
        "recipe": "vse",
        "settings": {
            "ema_decay": 0.5,
            "text": {"word_dropout": 0.2, "hidden": 8},
            "optim": {"lr_scale": ["image:0.1"]},
            "seed": 3,
        },
    }
    assert with_present_changes(("average=0", "epochs=2")) == ("ema_decay=0", "epochs=2")
