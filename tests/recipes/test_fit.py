"""Settings from Python: ``calligram.fit`` checks them as the command line does."""

from __future__ import annotations

import json
import re

import pytest

import calligram as cg
from calligram.errors import UserError
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.vse import VSE, VSESettings
from calligram.recipes.catalog import find_preset
from calligram.recipes.fit import _default_inputs, settings_from_python
from calligram.recipes.pairs import PairsSettings
from calligram.recipes.parts.config import from_plain
from calligram.recipes.parts.run import RunContext

SMALL = {
    "image": cg.ImageSettings(size=16, channels=[4]),
    "text": cg.TextSettings(word_dim=8, hidden=8, min_count=1),
    "dim": 8,
    "batch": 6,
    "epochs": 1,
    "ema_decay": 0,
}


def test_values_get_the_declared_types():
    term = cg.terms.Instance(weights=[1, 2])
    found = settings_from_python(PairsSettings(), {"lr": 1, "terms": (term,), "image": cg.ImageSettings(channels=[4])})
    assert (found.lr, type(found.lr)) == (1.0, float)
    assert found.terms[0].weights == (1.0, 2.0)
    assert found.image.channels == (4,)
    hash(found.terms)


def test_members_of_an_ensemble_keep_settings_of_their_own():
    two = (cg.models.VSESettings(head="paper"), cg.models.VSESettings())
    found = settings_from_python(PairsSettings(matcher=two), {"epochs": 2})
    assert [own.head for own in found.matcher] == ["paper", "linear"]


def test_dotted_keys_change_settings_of_a_preset():
    found = settings_from_python(find_preset("aoq").defaults, {"epochs": 3}, {"offline.texts": 30, "matcher": "scan"})
    assert found.term(cg.terms.Offline).texts == 30
    assert type(found.matcher[0]) is cg.models.SCANSettings
    assert [each.name for each in found.stages] == ["round 1", "round 2"]


def test_stages_are_checked_and_an_empty_one_stays():
    stages = (cg.stage(), cg.stage("end", epochs="2", without=["offline"], changes={"optim.lr_scale": ["image:0.5"]}))
    found = settings_from_python(PairsSettings(), {"stages": stages})
    assert found.stages[0].changes == ()
    assert found.stages[1].without == ("offline",)
    assert dict(found.stages[1].changes) == {"optim.lr_scale": ("image:0.5",), "epochs": 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epoch": 3}, "unknown setting 'epoch'; did you mean 'epochs'?"),
        ({"lr": -1}, "setting lr takes a number from 0 to 1000, got -1"),
        ({"image": cg.ImageSettings(size=-1)}, "setting image.size takes a whole number from 0 to 4096, got -1"),
        ({"image": {"size": 64}}, "setting image takes an object of the class ImageSettings, got {'size': 64}"),
        ({"terms": [cg.terms.Ranking(margin="wide")]}, "setting ranking.margin takes a number"),
        ({"stages": [cg.stage(epochs="many")]}, "setting stages.1.epochs takes a whole number"),
        ({"stages": [cg.stage(epoch=1)]}, "'epoch'"),
        ({"terms": ["rankin"]}, "unknown term 'rankin'; did you mean 'ranking'?"),
        ({"terms": cg.terms.Ranking}, "as a settings object or by name"),
        ({"terms": [cg.terms.InfoNCE(), cg.models.VSESettings()]}, "takes a term as a settings object or by name"),
        ({"terms": [None]}, "takes a term as a settings object or by name, got None"),
        ({"terms": 0.5}, "takes a term as a settings object or by name, got 0.5"),
        ({"stages": [{"epochs": 1}]}, "stages takes a list of calligram.stage(...)"),
        ({"stages": cg.stage(epochs=1)}, "stages takes a list of calligram.stage(...)"),
        ({"stages": "two"}, "stages takes a list of calligram.stage(...)"),
        ({"loss": cg.losses.info_nce, "terms": ["infonce"]}, "takes a loss or terms, not both"),
        ({"changes": {"offline.texts": 3}}, "setting offline.texts is for terms=offline"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_accepted(settings, message, tiny, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)):
        cg.fit(cg.models.VSESettings(), tiny, out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_wrong_matcher_is_refused(tiny, tmp_path):
    with pytest.raises(UserError, match="matcher as a settings object or by name"):
        cg.fit(cg.models.VSESettings, tiny, out=tmp_path / "run")
    with pytest.raises(UserError, match="unknown matcher 'skan'; did you mean 'scan'"):
        cg.fit(["skan"], tiny, out=tmp_path / "run")


def test_a_composition_is_trained_resumed_and_read_again(tiny, tmp_path):
    settings = {**SMALL, "terms": ["infonce", cg.terms.Instance(weight=0.5)], "stages": [cg.stage("one", epochs=1)]}
    run = cg.fit(["vse", "vse"], str(tiny.folder), out=tmp_path / "run", device="cpu", **settings)
    report = run.evaluate("test", device="cpu")
    assert report.retrieval.rsum > 0
    again = cg.fit(["vse", "vse"], tiny, out=tmp_path / "run", device="cpu", resume=True, **settings)
    assert again.about["settings"]["terms"] == ["infonce", "instance"]
    assert again.about["settings"]["instance"]["weight"] == 0.5


def test_a_run_records_every_member_of_an_ensemble(tiny, tmp_path):
    two = [cg.models.VSESettings(), cg.models.VSESettings(head="paper")]
    run = cg.fit(two, tiny, out=tmp_path / "run", device="cpu", **SMALL)
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert recorded["matcher"] == ["vse", "vse"]
    assert recorded["vse"]["head"] == "linear"
    assert recorded["vse"]["2"] == {"head": "paper"}
    assert from_plain(PairsSettings(), recorded).matcher == tuple(two)
    assert [own.settings.head for own in run.matcher.members] == ["linear", "paper"]
    for other in (two[:1] * 2, two[::-1]):
        with pytest.raises(UserError, match="was started with other settings"):
            cg.fit(other, tiny, out=tmp_path / "run", device="cpu", resume=True, **SMALL)
    cg.fit(two, tiny, out=tmp_path / "run", device="cpu", resume=True, **SMALL)


def test_inputs_of_a_given_matcher_follow_the_seed_of_the_run(tiny, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text(
        "".join(f"{word} {n} {n * n % 7} {n % 3}\n" for n, word in enumerate(("red", "green", "blue", "a")))
    )
    fitted = cg.TextVectorSettings(kind="gmm", centres=2, pca=2)
    text = cg.TextSettings(network="vectors", vectors=str(words), fitted=fitted)
    made = [
        _default_inputs(tiny, PairsSettings(seed=seed, image=SMALL["image"], text=text), RunContext()).texts.fingerprint
        for seed in (3, 3, 4)
    ]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image": cg.ImageSettings(size=64)}, "image.size has no effect, because calligram.fit got inputs"),
        ({"text": cg.TextSettings(network="lstm")}, "text.network has no effect, because calligram.fit got inputs"),
        ({"dim": 512}, "dim has no effect with a matcher object"),
    ],
)
def test_settings_that_a_matcher_object_and_its_inputs_do_not_read_are_refused(settings, message, tiny, tmp_path):
    inputs = cg.inputs(tiny, image_size=16)
    words = TextArchitecture(vocabulary=len(inputs.texts), word_dim=4, hidden=8)
    matcher = VSE(VSESettings(ImageArchitecture("cnn", channels=(4,)), words, 8))
    with pytest.raises(UserError, match=re.escape(message)):
        cg.fit(matcher, tiny, inputs=inputs, out=tmp_path / "run", **settings)
    still = cg.ImageSettings(flip=True)
    cg.fit(matcher, tiny, inputs=inputs, out=tmp_path / "run", image=still, epochs=1, batch=4, device="cpu")


def test_a_preset_is_trained_on_a_folder(tiny, tmp_path):
    found = cg.train("vse", tiny.folder, tmp_path / "run", "epochs=0", "image.size=16", "image.channels=4")
    assert "rsum" in found
