"""Trained runs that another run learns from: their encodings, their fingerprints, and the captions they saw."""

from __future__ import annotations

import json
import logging
import shutil

import numpy as np
import pytest
import torch

from calligram.errors import UserError
from calligram.evaluation.seen_captions import collection_of_run, refuse_leaks, teacher_fingerprints
from calligram.models.catalog import load_matcher, read_run_file, run_fingerprint
from calligram.recipes.parts.run import RunContext, load_teacher, train_preset

SMALL = (
    "batch=6", "dim=16", "text.word_dim=8", "text.hidden=16", "text.min_count=1", "image.features=colour", "epochs=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def teachers(spoken_tiny, tmp_path_factory):
    """A run on all captions and a run on half of the images."""
    folder = tmp_path_factory.mktemp("teachers")
    train_preset("vse", spoken_tiny, folder / "whole", *SMALL)
    train_preset("vse", spoken_tiny, folder / "half", *SMALL, "sparse.images=0.5")
    return folder


def test_a_teacher_has_the_encodings_of_all_training_items(spoken_tiny, teachers):
    train = spoken_tiny.sentences("train").join_equal_texts()
    teacher = load_teacher(str(teachers / "whole"), train, RunContext(torch.device("cpu")))
    stored = load_matcher(teachers / "whole")
    matcher, inputs = stored.matcher.eval(), stored.inputs
    with torch.no_grad():
        rows = inputs.images.load(train.visuals).take(np.arange(len(train.visuals)))
        images = matcher.encode_images(inputs.images.finish(rows)).vectors
        texts = matcher.encode_texts(*inputs.texts.load(train.texts.strings).take(np.arange(len(train.texts)))).vectors
    torch.testing.assert_close(teacher.images.vectors.float(), images, rtol=0, atol=1e-3)
    torch.testing.assert_close(teacher.texts.vectors.float(), texts, rtol=0, atol=1e-3)


def test_fingerprints_are_those_of_the_weights_and_of_runs_only(teachers, tmp_path):
    shutil.copytree(teachers / "whole", tmp_path / "copy")
    shutil.copytree(teachers / "whole", tmp_path / "changed")
    shutil.copyfile(teachers / "half" / "best.safetensors", tmp_path / "changed" / "best.safetensors")
    names = {"a": teachers / "whole", "b": tmp_path / "copy", "c": tmp_path / "changed"}
    found = teacher_fingerprints({key: str(folder) for key, folder in names.items()} | {"d": "openai/clip"})
    assert set(found) == {"a", "b", "c"}
    assert found["a"] == found["b"] == run_fingerprint(teachers / "whole") != found["c"]


def test_a_run_on_more_captions_than_the_sparse_collection_leaks(spoken_tiny, teachers):
    half = spoken_tiny.sparse(0.5)
    with pytest.raises(UserError, match=r"offline\.negatives=.*whole was trained on tiny, with \d+ captions that"):
        refuse_leaks({"offline.negatives": str(teachers / "whole")}, spoken_tiny, half)
    with pytest.raises(UserError, match=r"give a run on no more captions, with the same sparse\.seed"):
        refuse_leaks({"x": str(teachers / "half")}, spoken_tiny, spoken_tiny.sparse(0.5, seed=1))


def test_runs_on_no_more_captions_and_pretrained_models_are_accepted(spoken_tiny, teachers, caplog):
    half, accepted = spoken_tiny.sparse(0.5), {"x": str(teachers / "half"), "y": "openai/clip"}
    with caplog.at_level(logging.WARNING):
        refuse_leaks(accepted, spoken_tiny, half)
        refuse_leaks(accepted, spoken_tiny, spoken_tiny.sparse(0.75))
        refuse_leaks({"x": str(teachers / "whole")}, spoken_tiny, spoken_tiny)  # nothing is left out
    assert not caplog.records


def test_a_run_on_other_content_is_reported(spoken_tiny, stored_tiny, teachers, caplog):
    with caplog.at_level(logging.WARNING):
        refuse_leaks({"x": str(teachers / "whole")}, stored_tiny, stored_tiny.sparse(0.5))
    assert "was not trained on the present content of" in caplog.text


def test_the_collection_of_a_run_is_the_part_that_it_saw(spoken_tiny, stored_tiny, teachers):
    about = read_run_file(teachers / "half")
    assert collection_of_run(about, spoken_tiny).fingerprint == spoken_tiny.sparse(0.5).fingerprint
    assert collection_of_run(about, stored_tiny) is None
    assert collection_of_run({**about, "further captions": ["elsewhere.jpg"]}, spoken_tiny) is None


@pytest.mark.parametrize(
    ("preset", "setting", "terms"),
    [
        ("distil", "distillation.teacher={}", ()),
        ("aoq", "offline.negatives={}", ()),
        ("vse", "offline.negatives={}", ("terms=offline",)),
    ],
)
def test_every_setting_that_names_a_teacher_is_checked_and_recorded(
    spoken_tiny, teachers, tmp_path, preset, setting, terms
):
    key, run = setting.partition("=")[0], teachers / "half"
    changes = (*terms, setting.format(teachers / "whole"), "sparse.images=0.5")
    with pytest.raises(UserError, match=rf"{key}=.*whole was trained on tiny, with \d+ captions"):
        train_preset(preset, spoken_tiny, tmp_path / "leak", *SMALL, *changes)
    assert not (tmp_path / "leak").exists()
    changes = (*terms, setting.format(run), "sparse.images=0.5", "warmup_epochs=0")
    train_preset(preset, spoken_tiny, tmp_path / "run", *SMALL, *changes)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["teachers"] == {key: run_fingerprint(run)}
