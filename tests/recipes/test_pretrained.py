from __future__ import annotations

import json

import pytest
import torch

from calligram.errors import UserError
from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.training.runs import Run

SMALL = ("batch=14", "image.crop=1", "lr=3e-3", "ema_decay=0")


def run(collection, model, out, *changes, resume=False):
    preset = PRESETS["pretrained"]
    settings = resolve(preset.defaults, [f"pretrained.model={model}", *SMALL, *changes])
    return run_preset(preset, settings, collection, out, resume=resume, context=RunContext(torch.device("cpu")))


@pytest.mark.parametrize("model", ["tiny_clip", "tiny_siglip"])
def test_a_model_without_fine_tuning_becomes_a_run_that_can_be_evaluated_and_moved(model, tiny, request, tmp_path):
    found = run(tiny, request.getfixturevalue(model), tmp_path / "run", "epochs=0")
    (tmp_path / "run").rename(tmp_path / "moved")
    matcher, inputs = Run.open(tmp_path / "moved").load()
    report = evaluate_retrieval(matcher, inputs, tiny.sentences("dev"))
    assert report.retrieval.rsum == pytest.approx(found["rsum"])
    assert json.loads((tmp_path / "moved" / "metrics.jsonl").read_text())["dev"]["rsum"] == found["rsum"]
    again = run(tiny, request.getfixturevalue(model), tmp_path / "moved", "epochs=0", resume=True)
    assert again == found


@pytest.mark.parametrize(("model", "loss"), [("tiny_clip", "infonce"), ("tiny_siglip", "ranking")])
def test_fine_tuning_lifts_recall(model, loss, tiny, request, tmp_path):
    before = run(tiny, request.getfixturevalue(model), tmp_path / "before", "epochs=0")
    term = {"infonce": "infonce.temperature=0.07", "ranking": "ranking.top_k=none"}[loss]
    changes = (f"terms={loss}", term, "image.views=flip", "text.word_dropout=0.05", "epochs=40")
    after = run(tiny, request.getfixturevalue(model), tmp_path / "after", *changes)
    assert after["t2i_r1"] > max(60, before["t2i_r1"])  # chance is 1 in 6


def test_frozen_parts_stay_and_others_move(tiny, tiny_clip, tmp_path):
    run(tiny, tiny_clip, tmp_path / "before", "epochs=0")
    changes = ("epochs=1", "optim.warmup=0", "optim.frozen=model.vision_model", "optim.lr_scale=model.text_model:0.1")
    run(tiny, tiny_clip, tmp_path / "after", *changes)
    one, two = (Run.open(tmp_path / name).load()[0].state_dict() for name in ("before", "after"))
    moved = {name.split(".")[1] for name in one if not torch.equal(one[name], two[name])}
    assert moved == {"text_model", "text_projection", "visual_projection"}


def test_infonce_starts_from_the_models_own_temperature(tiny, tiny_clip):
    preset = PRESETS["pretrained"]
    for change, temperature in (("infonce.weight=1", 0.07), ("infonce.temperature=0.5", 0.5)):
        settings = resolve(preset.defaults, [f"pretrained.model={tiny_clip}", *SMALL, change])
        plan = preset.recipe.plan(settings, tiny, RunContext(torch.device("cpu")))
        objective = plan.stages[0].objective
        assert float(objective.temperature.detach()) == pytest.approx(temperature, rel=1e-3)


def test_a_model_must_be_given(tiny, tmp_path):
    with pytest.raises(UserError, match=r"needs a model: give --set pretrained\.model="):
        run(tiny, "", tmp_path / "run")
    with pytest.raises(UserError, match="setting epochs takes a whole number from 0 "):
        resolve(PRESETS["pretrained"].defaults, ["epochs=-1"])
