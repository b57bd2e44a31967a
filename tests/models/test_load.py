from __future__ import annotations

import json
import shutil

import pytest
import torch
from PIL import Image

from calligram.errors import UserError
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models import catalog
from calligram.models.catalog import INPUTS_FOLDER, MATCHER_FILE, RUN_FILE, WEIGHTS_FILE, load_matcher
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.vse import VSE, VSESettings


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    words = Vocabulary.build(["a red disc", "snow"], min_count=1)
    torch.manual_seed(0)
    matcher = VSE(VSESettings(ImageArchitecture("cnn"), TextArchitecture(vocabulary=len(words), pooling="last"), 8))
    (folder / RUN_FILE).write_text(json.dumps({"recipe": "vse"}))
    catalog.save(matcher, folder / MATCHER_FILE, folder / WEIGHTS_FILE)
    Inputs(PixelInput(16), words).save(folder / INPUTS_FOLDER)
    return folder


def test_a_run_is_loaded_ready_for_inference(run):
    stored = load_matcher(str(run))
    assert not stored.matcher.training
    assert stored.source == str(run.resolve())
    pixels = stored.inputs.images.images([Image.new("RGB", (20, 10), "red")])
    assert stored.matcher.encode_images(stored.inputs.images.finish(pixels)).vectors.shape == (1, 8)


def test_the_fingerprint_does_not_depend_on_the_folder_or_on_notes(run, tmp_path):
    before = load_matcher(run).fingerprint
    (run / "metrics.jsonl").write_text("{}\n")
    (run / RUN_FILE).write_text("{}")
    shutil.move(run, tmp_path / "elsewhere")
    assert load_matcher(tmp_path / "elsewhere").fingerprint == before


@pytest.mark.parametrize("change", ["weights", "preprocessing", "vocabulary"])
def test_the_fingerprint_depends_on_weights_architecture_and_inputs(run, change):
    before = load_matcher(run)
    if change == "weights":
        with torch.no_grad():
            next(before.matcher.parameters()).add_(1e-3)
        catalog.save(before.matcher, run / MATCHER_FILE, run / WEIGHTS_FILE)
    else:
        file = run / INPUTS_FOLDER / "inputs.json"
        old, new = ('"squash"', '"crop"') if change == "preprocessing" else ('"snow"', '"ice"')
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    assert load_matcher(run).fingerprint != before.fingerprint


def test_a_dual_encoder_is_loaded_with_its_inputs_from_any_folder(tiny_clip, tmp_path):
    stored = load_matcher(tiny_clip)
    assert stored.inputs.images.size == 16
    assert stored.inputs.images.fit == "crop"
    shutil.copytree(tiny_clip, tmp_path / "copy")
    again = load_matcher(str(tmp_path / "copy"))
    assert again.fingerprint == stored.fingerprint
    assert again.source == str((tmp_path / "copy").resolve())


def test_another_dual_encoder_has_another_fingerprint(tiny_clip, tiny_siglip):
    assert load_matcher(tiny_clip).fingerprint != load_matcher(tiny_siglip).fingerprint


def test_a_folder_without_a_matcher_is_refused(tmp_path):
    with pytest.raises(UserError, match="neither a run"):
        load_matcher(tmp_path)


def test_a_run_without_a_checkpoint_is_refused(run):
    (run / WEIGHTS_FILE).unlink()
    with pytest.raises(UserError, match="no checkpoint yet"):
        load_matcher(run)


@pytest.mark.parametrize("name", ["nothere", "./nothere", "run/nothere", "~/nothere"])
def test_a_missing_folder_is_not_looked_up_on_a_hub(name, run, monkeypatch):
    monkeypatch.chdir(run.parent)
    with pytest.raises(UserError, match=r"there is no folder .*nothere; .* OWNER/NAME"):
        load_matcher(name)
