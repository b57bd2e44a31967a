from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from calligram.errors import UserError
from calligram.models.mmca import MMCASettings
from calligram.models.old_settings import RENAMED_SETTINGS, present_key
from calligram.models.scan import SCANSettings
from calligram.models.vse import VSESettings
from calligram.recipes.catalog import PRESETS, RECIPES, find_preset
from calligram.recipes.pairs import MATCHER_SETTINGS, PairsSettings
from calligram.recipes.parts.config import (
    as_plain,
    changed,
    from_plain,
    resolve,
    settings_fields,
    settings_of_stage,
    shown_settings,
)
from calligram.recipes.parts.run_settings import STAGES, StageSettings, stage
from calligram.recipes.parts.terms import TERMS, Caption, InfoNCE, Instance, Ranking, term
from calligram.recipes.phrases import PHRASE_MATCHERS, PhrasesSettings

MAX_SHOWN = 45
"""largest number of settings that ``calligram show`` prints for a preset"""
MAX_KEYS = 200
"""largest number of distinct keys of all presets and components"""


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


# Stages


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


# What is shown


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


# Renamed keys


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
