from __future__ import annotations

import json

import pytest
import torch

from calligram.checksums import sealed
from calligram.errors import UserError
from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.studies.results import result_line
from calligram.training.runs import Run

SMALL = ("batch=6", "dim=16", "text.word_dim=8", "text.hidden=16", "text.min_count=1", "texts=1", "image.crop=1")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    import transformers

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("backbone")
    transformers.MobileNetV2Model(transformers.MobileNetV2Config(depth_multiplier=0.2, image_size=32)).save_pretrained(
        folder
    )
    return folder


def run(collection, out, *changes, resume=False):
    preset = PRESETS["vse"]
    settings = resolve(preset.defaults, [*SMALL, *changes])
    return run_preset(preset, settings, collection, out, resume=resume, context=RunContext(torch.device("cpu")))


@pytest.mark.parametrize("train", ["false", "true"])
def test_a_text_encoder_serves_frozen_and_trained_and_its_run_is_self_contained(tiny, tiny_bert, tmp_path, train):
    copy = tmp_path / "encoder"
    copy.symlink_to(tiny_bert)
    run(tiny, tmp_path / "run", f"text.encoder={copy}", f"text.train={train}", "image.size=32", "epochs=3")
    copy.unlink()
    matcher, inputs = Run.open(tmp_path / "run").load()
    report = evaluate_retrieval(matcher, inputs, tiny.sentences("test"))
    assert report.retrieval.t2i.queries == 14
    assert any(name.startswith("text.encoder") for name, _ in matcher.named_parameters()) == (train == "true")


@pytest.mark.parametrize("train", ["false", "true"])
@pytest.mark.parametrize("views", ["one", "flip"])
def test_a_backbone_serves_frozen_and_trained_and_its_run_is_self_contained(tiny, backbone, tmp_path, train, views):
    copy = tmp_path / "backbone"
    copy.symlink_to(backbone)
    settings = (f"image.backbone={copy}", f"image.train={train}", f"image.views={views}", "image.size=32", "epochs=3")
    run(tiny, tmp_path / "run", *settings)
    copy.unlink()  # the run must not need it any more
    matcher, inputs = Run.open(tmp_path / "run").load()
    report = evaluate_retrieval(matcher, inputs, tiny.sentences("test"))
    assert report.retrieval.t2i.queries == 14
    picture = tiny.sentences("test").visuals.open(0)
    alone = matcher.encode_images(inputs.images.finish(inputs.images.images([picture]))).vectors
    assert alone.shape == (1, 16)


def test_a_backbone_trained_end_to_end_learns(tiny, backbone, tmp_path):
    settings = ("image.train=true", "image.size=32", "epochs=40", "lr=0.003", "batch=14", "ema_decay=0")
    best = run(tiny, tmp_path / "run", f"image.backbone={backbone}", *settings)
    assert best["t2i_r1"] > 40  # chance is 1 in 6


def test_word_dropout_and_frozen_parts(tiny, tmp_path):
    run(
        tiny,
        tmp_path / "run",
        "image.size=16",
        "image.channels=4",
        "epochs=2",
        "text.word_dropout=0.3",
        "optim.frozen=text.words",
    )
    assert (tmp_path / "run" / "best.safetensors").is_file()


def test_stored_features_are_trained_on(stored_tiny, tmp_path):
    best = run(stored_tiny, tmp_path / "run", "image.features=colour", "epochs=3")
    assert best["rsum"] > 0


def test_a_run_is_resumed_with_the_same_settings_only(tiny, tmp_path):
    out, changes = tmp_path / "run", ("image.size=32", "epochs=1", "ema_decay=0.5", "text.word_dropout=0.3")
    best = run(tiny, out, *changes)
    assert run(tiny, out, *changes, resume=True)["rsum"] == best["rsum"]
    with pytest.raises(UserError, match=r"other settings: text\.word_dropout was 0\.3, now 0\.1"):
        run(tiny, out, *changes, "text.word_dropout=0.1", resume=True)
    with pytest.raises(UserError, match=r"other settings: .*terms was \['infonce'\], now \['ranking'\]"):
        run(tiny, out, *changes, "terms=ranking", resume=True)


def test_a_run_that_lacks_a_new_setting_is_resumed_with_its_default(tiny, tmp_path):
    out, changes = tmp_path / "run", ("image.size=32", "epochs=1", "terms=infonce,instance")
    best = run(tiny, out, *changes)
    about = json.loads((out / "run.json").read_text())
    del about["settings"]["optim"]["step_epochs"], about["settings"]["instance"]["clusters"]
    (out / "run.json").write_text(json.dumps(sealed(about)))
    assert run(tiny, out, *changes, resume=True)["rsum"] == best["rsum"]


def test_a_run_of_an_earlier_version_opens_and_is_recorded_but_not_resumed(tiny, tmp_path):
    """``run.json`` as versions without presets wrote it: it names a recipe, and settings have their former names."""
    out, changes = tmp_path / "run", ("image.size=32", "epochs=1", "ema_decay=0.5", "text.word_dropout=0.3")
    run(tiny, out, *changes)
    about = json.loads((out / "run.json").read_text())
    settings = about["settings"]
    settings["average"] = settings.pop("ema_decay")
    settings["text"]["blank"] = settings["text"].pop("word_dropout")
    del about["preset"], settings["matcher"], settings["terms"]
    (out / "run.json").write_text(json.dumps(sealed({**about, "recipe": "vse"})))
    with pytest.raises(UserError, match="was started with other recipe: 'vse', now 'pairs'"):
        run(tiny, out, *changes, resume=True)
    matcher, inputs = Run.open(out).load()
    report = evaluate_retrieval(matcher, inputs, tiny.sentences("test"))
    line = result_line(Run.open(out), tiny, "test", report)
    assert line.recipe == "vse"
    assert {key: line.settings[key] for key in ("average", "text.blank")} == {"average": 0.5, "text.blank": 0.3}


def test_a_recorded_run_has_the_settings_that_differ_from_its_preset(tiny, tmp_path):
    run(tiny, tmp_path / "run", "image.size=32", "epochs=1", "ema_decay=0.5", "text.word_dropout=0.3")
    matcher, inputs = Run.open(tmp_path / "run").load()
    report = evaluate_retrieval(matcher, inputs, tiny.sentences("test"))
    line = result_line(Run.open(tmp_path / "run"), tiny, "test", report)
    assert line.recipe == "vse"
    assert {key: line.settings[key] for key in ("ema_decay", "text.word_dropout")} == {
        "ema_decay": 0.5,
        "text.word_dropout": 0.3,
    }
    assert "texts" in line.settings
    assert "lr" not in line.settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("text.train=true",), r"text\.train=true needs a text\.encoder"),
        (("image.dropout=0.1",), r"image\.dropout changes stored features"),
        (("image.features=x",), "x"),
    ],
)
def test_contradictory_settings_are_refused(tiny, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        run(tiny, tmp_path / "run", *changes)
    assert not (tmp_path / "run").exists()
