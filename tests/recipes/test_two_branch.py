from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.models.catalog import load_matcher
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.training.runs import Run, load_run

SIZES = ("dim=16", "batch=14", "lr=0.01", "ema_decay=0.5")
SMALL = {
    "two-branch": ("two-branch.hidden=32", "two-branch.dropout=0", *SIZES, "epochs=20"),
    "two-branch-similarity": (
        "two-branch-similarity.hidden=32",
        "two-branch-similarity.dropout=0",
        *SIZES,
        "epochs=40",
    ),
    "cca": (),
}
SIDES = ("image.features=colours", "text.fitted.kind=tfidf")


@pytest.fixture(scope="module")
def colours(tiny_draft, tmp_path_factory):
    """The tiny collection with features that tell its colours, each picture a little differently."""
    folder = tmp_path_factory.mktemp("colours")
    (folder / "pictures").mkdir()
    draft = tiny_draft(folder / "pictures")
    rng = np.random.default_rng(0)
    values = rng.normal(scale=0.1, size=(len(draft.images), 8)).astype(np.float32)
    for row, image in enumerate(draft.images):
        values[row, image.metadata["n"]] += 1
        image.feature_rows["colours"] = row
    np.save(folder / "colours.npy", values)
    draft.features["colours"] = [folder / "colours.npy"]
    return write_draft(draft, folder / "collection")


def run(preset, collection, out, *changes, resume=False):
    settings = resolve(PRESETS[preset].defaults, [*SMALL[preset], *changes])
    return run_preset(PRESETS[preset], settings, collection, out, resume=resume, context=RunContext())


@pytest.mark.parametrize("preset", SMALL)
def test_every_preset_learns_and_leaves_a_run_that_evaluates_the_same(colours, tmp_path, preset):
    best = run(preset, colours, tmp_path / "run", *SIDES)
    assert best["i2t_r1"] > 60  # chance is about 1 in 6
    matcher, inputs = load_run(tmp_path / "run")
    found = evaluate_retrieval(matcher, inputs, colours.sentences("dev")).retrieval
    assert found.rsum == pytest.approx(best["rsum"])
    assert Run.open(tmp_path / "run").about["seconds"] >= 0


def test_resuming_a_fitted_run_does_nothing(colours, tmp_path):
    best = run("cca", colours, tmp_path / "run", *SIDES, "cca.eta=0.1,0.001")
    file = tmp_path / "run" / "best.safetensors"
    written = file.stat().st_mtime_ns
    assert run("cca", colours, tmp_path / "run", *SIDES, "cca.eta=0.1,0.001", resume=True) == best
    assert file.stat().st_mtime_ns == written
    assert load_run(tmp_path / "run")[0].settings.eta in (0.1, 0.001)
    with pytest.raises(UserError, match="eta was"):
        run("cca", colours, tmp_path / "run", *SIDES, "cca.eta=0.1", resume=True)


def test_an_interrupted_fit_is_repeated(colours, tmp_path):
    best = run("cca", colours, tmp_path / "run", *SIDES)
    (tmp_path / "run" / "best.safetensors").unlink()
    assert run("cca", colours, tmp_path / "run", *SIDES, resume=True) == best


def test_constraints_are_a_second_stage_and_the_best_epoch_is_one_of_them(colours, tmp_path):
    constraints = ("name=constraints", "epochs=1", "lr=0", "neighbourhood.weights=1,2,0.1,0.2", "resets_best=true")
    settings = ("epochs=3", "ema_decay=0", "stages.1.name=ranking", *(f"stages.2.{change}" for change in constraints))
    best = run("two-branch", colours, tmp_path / "run", *SIDES, *settings)
    rows = [row for row in Run(tmp_path / "run").metrics() if "dev" in row]
    assert [(row["stage"], row["epoch"]) for row in rows] == [
        *(("ranking", e) for e in range(3)), ("constraints", 0),
    ]  # fmt: skip
    assert best["step"] == rows[-1]["step"]
    assert best["rsum"] == rows[-1]["dev"]["rsum"]


@pytest.mark.parametrize("extra", ["none", "random"])
def test_other_batches_and_one_direction_train_too(colours, tmp_path, extra):
    term = ("neighbourhood.weights=0,1,0,0", "neighbourhood.top_k=none")
    settings = ("epochs=10", f"extra_pairs={extra}", "two-branch.layers=1", *term)
    assert run("two-branch", colours, tmp_path / "run", *SIDES, *settings)["t2i_r1"] > 20


def test_a_recurrent_network_is_trained_too(colours, tmp_path):
    side = ("image.features=colours", "text.network=gru", "text.min_count=1", "text.hidden=16", "text.word_dim=8")
    settings = resolve(PRESETS["two-branch"].defaults, [*SMALL["two-branch"], *side, "epochs=12"])
    matcher = PRESETS["two-branch"].recipe.plan(settings, colours, RunContext()).matcher
    before = matcher.text.words.weight.detach().clone()
    assert run("two-branch", colours, tmp_path / "run", *side, "epochs=12")["i2t_r1"] > 40
    assert not torch.equal(load_run(tmp_path / "run")[0].text.words.weight, before)


@pytest.mark.parametrize("train", ["true", "false"])
def test_an_encoder_serves_frozen_and_trained(colours, tiny_bert, tmp_path, train):
    side = ("image.features=colours", f"text.encoder={tiny_bert}", f"text.train={train}")
    run("two-branch", colours, tmp_path / "run", *side, "epochs=2")
    kind = "bert" if train == "true" else "states"
    assert load_run(tmp_path / "run")[0].settings.text.kind == kind


@pytest.mark.parametrize("train", ["true", "false"])
def test_a_backbone_serves_frozen_and_trained(tiny, tmp_path, train):
    from transformers import MobileNetV2Config, MobileNetV2Model

    MobileNetV2Model(MobileNetV2Config(depth_multiplier=0.35, image_size=32)).save_pretrained(tmp_path / "net")
    side = (f"image.backbone={tmp_path / 'net'}", f"image.train={train}", "image.size=32", "text.fitted.kind=tfidf")
    run("two-branch", tiny, tmp_path / "run", *side, "epochs=1")
    matcher, inputs = load_run(tmp_path / "run")
    assert matcher.settings.image.kind == ("backbone" if train == "true" else "features")
    assert evaluate_retrieval(matcher, inputs, tiny.sentences("test")).retrieval.i2t.queries == 6


def test_pixels_serve_too(tiny):
    settings = resolve(PRESETS["two-branch"].defaults, [*SMALL["two-branch"], "text.fitted.kind=tfidf"])
    assert PRESETS["two-branch"].recipe.plan(settings, tiny, RunContext()).matcher.settings.image.kind == "cnn"


def test_batch_statistics_are_measured_and_left_out_of_search(colours, tmp_path, caplog):
    run("two-branch", colours, tmp_path / "run", *SIDES, "epochs=2", "two-branch.statistics=batch")
    assert load_run(tmp_path / "run")[0].text_branch.norm.statistics == "batch"
    with caplog.at_level(logging.WARNING):
        stored = load_matcher(tmp_path / "run")
    assert "the training statistics are used instead" in caplog.text
    assert stored.matcher.encode_texts(*stored.inputs.texts.texts(["a red disc"])).vectors.shape == (1, 16)


@pytest.mark.parametrize(
    ("preset", "change", "message"),
    [
        ("two-branch", ("neighbourhood.weights=0,0,0,0",), "weights are all zero"),
        (
            "two-branch",
            ("neighbourhood.weights=1",),
            "setting neighbourhood.weights takes 4 numbers separated by commas from 0 to 1000, got '1'",
        ),
        ("two-branch", ("neighbourhood.weights=1,2,0,0.2", "extra_pairs=random"), "give extra_pairs=neighbours"),
        (
            "two-branch",
            ("stages.1.name=ranking", "stages.2.neighbourhood.weights=0,0,0,0"),
            "weights are all zero",
        ),
        ("two-branch", ("text.source=encoder",), "text.source is now called text.network"),
        ("two-branch", ("text.train=true",), "text.train=true needs a text.encoder"),
        ("two-branch", ("text.network=gru", "text.pooling=cls"), "a GRU takes last, mean or max"),
        ("cca", ("image.features=",), "needs image features"),
        ("two-branch", ("image.features=colour",), "did you mean 'colours'"),
        ("two-branch-similarity", ("two-branch-similarity.heads=4",), "heads takes a whole number from 1 to 3"),
        ("cca", ("cca.eta=",), "eta needs at least one value"),
        ("cca", ("image.train=true",), "cca fits features"),
        ("cca", ("text.fitted.kind=hglmm",), "need word vectors"),
    ],
)
def test_invalid_settings_are_refused(colours, tmp_path, preset, change, message):
    with pytest.raises(UserError, match=message):
        run(preset, colours, tmp_path / "run", *SIDES, *change)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """Return a file of word vectors."""
    names = ("a", "the", "red", "green", "blue", "yellow", "white", "black", "disc", "square", "picture")
    vectors = np.random.default_rng(0).normal(size=(len(names), 4))
    file = tmp_path_factory.mktemp("words") / "words.txt"
    file.write_text("".join(f"{name} {' '.join(map(str, v))}\n" for name, v in zip(names, vectors, strict=True)))
    return file


@pytest.mark.parametrize("preset", ["cca", "two-branch"])
def test_fisher_vectors_follow_the_seed_of_the_run(colours, tmp_path, words, preset):
    sides = ("image.features=colours", "text.fitted.kind=gmm", f"text.vectors={words}", "text.fitted.centres=2")
    short = ("text.fitted.pca=3", *(("epochs=1",) if preset != "cca" else ()))
    found = {}
    for name, seed in {"0": 0, "1": 1, "again": 1}.items():
        run(preset, colours, tmp_path / name, *sides, *short, f"seed={seed}")
        found[name] = load_run(tmp_path / name)[1].texts.fingerprint
    assert found["0"] != found["1"]
    assert found["1"] == found["again"]


@pytest.mark.parametrize("kind", ["tfidf", "mean"])
def test_cca_of_vectors_without_a_random_fit_is_deterministic(colours, tmp_path, words, kind):
    sides = ("image.features=colours", f"text.fitted.kind={kind}", *((f"text.vectors={words}",) * (kind == "mean")))
    weights = []
    for seed in (0, 1):
        run("cca", colours, tmp_path / str(seed), *sides, f"seed={seed}")
        weights.append((tmp_path / str(seed) / "best.safetensors").read_bytes())
    assert weights[0] == weights[1]
