"""Training that starts with the weights of another run (``start=``)."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PictureFile
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.models.catalog import load_matcher, read_run_file
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, load_start, run_preset
from calligram.training.runs import Run

SMALL = (
    "image.features=colour", "batch=6", "dim=16", "text.word_dim=8", "text.hidden=16", "text.min_count=1",
    "ema_decay=0", "lr=0.01",
)  # fmt: skip
CPU = RunContext(torch.device("cpu"))


def run(collection, out, *changes, resume=False):
    settings = resolve(PRESETS["vse"].defaults, [*SMALL, *changes])
    found = run_preset(PRESETS["vse"], settings, collection, out, resume=resume, context=CPU)
    return found, Run.open(out).load()[0].state_dict()


@pytest.fixture(scope="module")
def before(stored_tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("before") / "run"
    return folder, run(stored_tiny, folder, "epochs=10")


@pytest.fixture(scope="module")
def ensemble(stored_tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensemble") / "run"
    return folder, run(stored_tiny, folder, "matcher=vse,vse", "epochs=2")


def initial_weights(collection, *changes):
    settings = resolve(PRESETS["vse"].defaults, [*SMALL, *changes])
    return PRESETS["vse"].recipe.plan(settings, collection, CPU).matcher.state_dict()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_training_continues_from_the_weights_of_a_run(stored_tiny, before, tmp_path):
    folder, (found, weights) = before
    assert not same(initial_weights(stored_tiny, "seed=3"), weights)
    assert same(initial_weights(stored_tiny, "seed=3", f"start={folder}"), weights)
    still, _ = run(stored_tiny, tmp_path / "still", f"start={folder}", "epochs=1", "lr=0", "optim.weight_decay=0")
    assert still["rsum"] == pytest.approx(found["rsum"])
    _, trained = run(stored_tiny, tmp_path / "more", f"start={folder}", "epochs=1")
    assert not same(trained, weights)
    assert read_run_file(tmp_path / "more")["teachers"].keys() == {"start"}


def test_of_an_ensemble_the_first_member_is_taken_and_an_ensemble_takes_all(stored_tiny, ensemble):
    folder, (_, weights) = ensemble
    first = {name.removeprefix("members.0."): own for name, own in weights.items() if name.startswith("members.0.")}
    assert same(initial_weights(stored_tiny, f"start={folder}"), first)
    assert same(initial_weights(stored_tiny, f"start={folder}", "matcher=vse,vse"), weights)


def test_a_restart_sets_weights_back_to_those_of_the_run(stored_tiny, before, tmp_path):
    folder, (_, weights) = before
    _, after = run(
        stored_tiny, tmp_path / "run", f"start={folder}", "stages.1.epochs=2", "stages.2.epochs=1",
        "stages.2.on_start=restart", "stages.2.lr=0", "stages.2.resets_best=true", "optim.weight_decay=0",
    )  # fmt: skip
    assert same(after, weights)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("dim=8",), r"has the shape \(16.* there and has the shape \(8.* here; take the settings matcher, dim"),
        (("matcher=vse,vse",), "it has one matcher, and this run an ensemble of 2"),
        (("matcher=vsrn",), "has no matcher with the same weights .* does not exist"),
        (("sparse.images=0.5",), "with .* captions that .* leaves out: it would leak them"),
    ],
)
def test_a_run_that_does_not_fit_is_refused(stored_tiny, before, tmp_path, changes, message):
    folder, _ = before
    with pytest.raises(UserError, match=message):
        run(stored_tiny, tmp_path / "run", f"start={folder}", *changes)
    assert not (tmp_path / "run").exists()


def test_other_words_of_the_same_number_are_refused(stored_tiny, before):
    folder, _ = before
    stored = load_matcher(folder)
    words = stored.inputs.texts.words
    other = replace(
        stored.inputs, texts=replace(stored.inputs.texts, words=(*words[:4], words[5], words[4], *words[6:]))
    )
    with pytest.raises(UserError, match="splits texts into other words or pieces"):
        load_start(str(folder), stored, stored.matcher, other, stored_tiny.sentences("train"))


def test_training_continues_on_other_captions_with_the_words_of_the_run(stored_tiny, before, tmp_path):
    folder, (_, weights) = before
    (tmp_path / "texts.txt").write_text("an unseen word\nand another unseen word\n")
    part = ("sparse.images=0.5", "epochs=2")
    _, half = run(stored_tiny, tmp_path / "half", *part)
    with_all = initial_weights(stored_tiny, f"start={tmp_path / 'half'}")
    assert same(with_all, half)
    assert len(half["text.words.weight"]) < len(weights["text.words.weight"])
    texts = (
        "terms=infonce,distillation",
        f"distillation.teacher={folder}",
        f"distillation.texts={tmp_path / 'texts.txt'}",
    )
    assert same(initial_weights(stored_tiny, f"start={folder}", *texts), weights)


def test_a_run_that_saw_test_pictures_is_reported(stored_tiny, tmp_path, caplog):
    draft = Draft("other splits")
    for row, (number, split) in enumerate(
        zip(*(stored_tiny.column("images", c) for c in ("id", "split")), strict=True)
    ):
        file = PictureFile(tmp_path / f"{number}.png")
        file.path.write_bytes(stored_tiny.pictures.read(row))
        draft.images.append(ImageRecord(number, file, "train" if split == "test" else split))
        draft.captions.append(CaptionRecord(f"caption {number}", f"a disc of {number}", (number,)))
    other = write_draft(draft, tmp_path / "other")
    pixels = ("image.features=", "image.size=16", "image.channels=4", "epochs=1")
    run(other, tmp_path / "run", *pixels)
    with caplog.at_level(logging.WARNING):
        run(other, tmp_path / "more", *pixels, f"start={tmp_path / 'run'}")
        assert "are in dev or test here" not in caplog.text
        run(stored_tiny, tmp_path / "again", *pixels, f"start={tmp_path / 'run'}")
    assert "on 6 pictures that are in dev or test here: recalls will be too high" in caplog.text


def test_features_of_another_network_are_refused(spoken_tiny, tiny_classifier, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tiny_classifier, other)
    weights = load_file(other / "model.safetensors")
    save_file({name: -weight for name, weight in weights.items()}, other / "model.safetensors", {"format": "pt"})
    frozen = ("image.features=", "image.size=32", "epochs=1")
    run(spoken_tiny, tmp_path / "run", *frozen, f"image.backbone={tiny_classifier}")
    with pytest.raises(UserError, match=r"features of another network; give the image\.backbone of that run"):
        run(spoken_tiny, tmp_path / "more", *frozen, f"image.backbone={other}", f"start={tmp_path / 'run'}")
    run(spoken_tiny, tmp_path / "more", *frozen, f"image.backbone={tiny_classifier}", f"start={tmp_path / 'run'}")
