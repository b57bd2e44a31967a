"""Settings are read by their type, from words, files and JSON; names choose components."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from calligram.errors import UserError
from calligram.models.mmca import MMCASettings
from calligram.models.scan import SCANSettings
from calligram.models.vse import VSESettings
from calligram.recipes.catalog import PRESETS, find_preset
from calligram.recipes.pairs import MATCHER_SETTINGS, PairsSettings
from calligram.recipes.parts.config import (
    as_plain,
    changed,
    from_plain,
    resolve,
    settings_fields,
)
from calligram.recipes.parts.run_settings import StageSettings
from calligram.recipes.parts.terms import TERMS, Caption, Instance, Ranking, term
from calligram.recipes.phrases import PhrasesSettings


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
        ("text.pooling=cls", "text.pooling=cls needs a text.encoder"),
        ("optim.clip=-1", "setting optim.clip takes"),
    ],
)
def test_values_out_of_range_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        resolve(PRESETS["vse"].defaults, [change])


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


@pytest.mark.parametrize("name", PRESETS)
def test_every_setting_of_every_preset_is_described_and_epochs_and_seed_are_there(name):
    fitted_at_once = name in ("cca", "combined", "ensemble", "tags")
    found = settings_fields(PRESETS[name].defaults)
    assert not [f.key for f in found if not f.description]
    keys = {f.key for f in found}
    assert "seed" in keys
    assert fitted_at_once or "epochs" in keys


@pytest.mark.parametrize("kind", ["matcher", "terms"])
def test_every_setting_of_every_component_is_described(kind):
    catalog = MATCHER_SETTINGS if kind == "matcher" else TERMS
    for name in catalog:
        found = settings_fields(resolve(PairsSettings(), [f"{kind}={name}"]))
        assert [f for f in found if f.key.startswith(f"{name}.")]
        assert not [f.key for f in found if not f.description]


def test_an_unknown_preset_suggests_the_nearest():
    with pytest.raises(UserError, match="unknown preset 'vsee'; did you mean 'vse'"):
        find_preset("vsee")


# Components: matcher= and terms=


def test_names_choose_components_and_their_settings_have_these_names():
    found = resolve(PairsSettings(), ["matcher=mmca,scan", "mmca.heads=4", "scan.direction=i2t", "dim=16"])
    assert found.matcher == (MMCASettings(heads=4), SCANSettings(direction="i2t"))
    # The order of the changes does not matter.
    found = resolve(PairsSettings(), ["instance.weight=0.5", "ranking.top_k=none", "terms=ranking,instance"])
    assert found.terms == (Ranking(top_k=None), Instance(weight=0.5))
    again = resolve(found, ["terms=instance,caption"])
    assert again.terms == (Instance(weight=0.5), Caption())


def test_members_with_the_same_name_have_the_same_settings():
    found = resolve(PRESETS["best-ensemble"].defaults, ["vse.head=paper", "matcher=mmca,vse,vse"])
    assert found.matcher == (MMCASettings(), VSESettings(head="paper"), VSESettings(head="paper"))


def test_a_number_names_one_of_several_members():
    both = resolve(PairsSettings(), ["scan.2.direction=i2t", "matcher=scan,vse,scan", "scan.aggregation=mean"])
    one, two = SCANSettings(aggregation="mean"), SCANSettings(direction="i2t", aggregation="mean")
    assert both.matcher == (one, VSESettings(), two)
    plain = json.loads(json.dumps(as_plain(both)))
    assert (plain["scan"]["direction"], plain["scan"]["2"]) == ("t2i", {"direction": "i2t"})
    assert from_plain(PairsSettings(), plain) == both
    assert changed(both, PairsSettings())["scan.2.direction"] == "i2t"
    assert resolve(both, ["matcher=scan,scan"]).matcher == (one, two)
    assert resolve(both, ["scan.1.direction=i2t"]).matcher == (two, VSESettings(), two)
    assert not [key for key in changed(resolve(both, ["scan.1.direction=i2t"]), PairsSettings()) if "2" in key]
    for key in ("scan.3.direction", "scan.0.direction", "vse.2.head"):
        with pytest.raises(UserError, match=f"unknown setting '{key}'"):
            resolve(both, [f"{key}=i2t"])
    with pytest.raises(UserError, match=r"setting scan\.2\.direction takes t2i or i2t"):
        resolve(both, ["scan.2.direction=up"])


@pytest.mark.parametrize("name", ["optim", "image", "stages", "epochs", "vse"])
def test_a_term_with_the_name_of_a_setting_is_refused(name, monkeypatch):
    monkeypatch.setattr(TERMS, "_registered", {})
    with pytest.raises(UserError, match=f"a term cannot have the name '{name}', because a setting has this name"):
        term(name)(type("Own", (Ranking,), {}))
    assert name not in TERMS
    # An installed package may declare it without registering it.
    monkeypatch.setattr(TERMS, "_registered", {name: type("Own", (Ranking,), {"name": name})})
    with pytest.raises(UserError, match=f"a term cannot have the name '{name}'"):
        resolve(PairsSettings(), [f"terms={name}"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("matcher=scam",), "unknown matcher 'scam'; did you mean 'scan'"),
        (("terms=rankin",), "unknown term 'rankin'; did you mean 'ranking'"),
        (("matcher=",), "matcher= names no matcher"),
        (("terms=",), "terms= names no term"),
        (("matcher=cca",), "matcher 'cca' is not built from two towers"),
        (("matcher=pretrained,vse",), "pretrained dual encoder cannot be a member"),
        (
            ("scan.direction=i2t",),
            r"setting scan\.direction is for matcher=scan, and this run has matcher=vse; add scan to matcher=, or",
        ),
        (
            ("terms=infonce,instance", "ranking.margin=0.1"),
            r"setting ranking\.margin is for terms=ranking, and this run has terms=infonce,instance; add ranking to",
        ),
        (("infonce.temperatur=1",), "unknown setting 'infonce.temperatur'; did you mean 'infonce.temperature'"),
        (
            ("infonce.temperature=0",),
            r"setting infonce\.temperature takes a number or none from 0\.001 to 100, got '0'",
        ),
        (("terms=ranking,instance", "instance.weights=1"), r"setting instance\.weights takes 2 numbers separated"),
        (("terms=instance", "instance.weights=0,0"), r"instance\.weights are both zero"),
        (("terms=neighbourhood", "neighbourhood.weights=0,0,0,0"), r"neighbourhood\.weights are all zero"),
    ],
)
def test_components_and_settings_of_absent_components_are_refused_with_the_reason(changes, message):
    with pytest.raises(UserError, match=message):
        resolve(PairsSettings(), changes)


def test_matcher_and_term_are_checked_together():
    found = resolve(PhrasesSettings(), ["matcher=two-branch-similarity", "terms=logistic"])
    assert (found.network, found.terms[0].name) == ("two-branch-similarity", "logistic")
    with pytest.raises(UserError, match="matcher=two-branch-similarity of regions and phrases is trained by terms="):
        resolve(PhrasesSettings(), ["matcher=two-branch-similarity"])


def test_a_file_chooses_components_and_stages(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(
        'terms = ["ranking", "instance"]\ninstance.weight = 0.5\n[[stages]]\nwithout = ["ranking"]\n'
        "[[stages]]\n[[stages]]\nlr = 0.1\noptim.lr_scale = []\n"
    )
    found = resolve(PairsSettings(), ["stages.3.lr=0.2"], file)
    assert found.terms == (Ranking(), Instance(weight=0.5))
    assert found.stages == (
        StageSettings(without=("ranking",)),
        StageSettings(),
        StageSettings(changes=(("optim.lr_scale", ()), ("lr", 0.2))),
    )


# Round trip


@pytest.mark.parametrize("name", PRESETS)
def test_settings_of_every_preset_survive_json(name):
    preset = PRESETS[name]
    plain = json.loads(json.dumps(as_plain(preset.defaults)))
    for defaults in (preset.defaults, preset.recipe.settings_class()):
        again = from_plain(defaults, plain)
        assert again == preset.defaults
        assert json.dumps(as_plain(again)) == json.dumps(plain)
    assert not changed(again, preset.defaults)


@pytest.mark.parametrize(
    "changes",
    [
        ("matcher=mmca,scan,vse,vse", "mmca.heads=4", "terms=ranking,caption,offline", "offline.texts=7"),
        ("stages.1.epochs=1", "stages.2.name=", "stages.3.name="),  # stages without changes
        ("stages.1.name=", "stages.2.without=infonce", "stages.2.on_start=mine,restart", "stages.2.optim.clip=none"),
    ],
)
def test_changed_settings_survive_json(changes):
    settings = resolve(PRESETS["vse"].defaults, changes)
    again = from_plain(PairsSettings(), json.loads(json.dumps(as_plain(settings))))
    assert again == settings
    assert len(again.stages) == len({change.split(".")[1] for change in changes if change.startswith("stages.")})
