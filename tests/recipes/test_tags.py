from __future__ import annotations

import logging

import pytest
import torch
from typer.testing import CliRunner

from calligram.cli.main import app
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.features.pseudo.wordnet import WordNet
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset, train_preset
from calligram.training.runs import Run


def run(collection, out, *changes):
    preset = PRESETS["tags"]
    return run_preset(
        preset, resolve(preset.defaults, changes), collection, out, context=RunContext(torch.device("cpu"))
    )


def test_scores_are_sums_of_the_probabilities_of_named_labels(
    tiny, tiny_classifier, tiny_wordnet, tmp_path, monkeypatch
):
    from transformers import AutoModelForImageClassification

    monkeypatch.setattr(WordNet, "find", lambda: WordNet.open(tiny_wordnet))
    run(tiny, tmp_path / "run", f"backbone={tiny_classifier}", "expand=kinds")
    monkeypatch.setattr(WordNet, "find", lambda: None)  # a run is self-contained
    matcher, inputs = Run.open(tmp_path / "run").load()
    visuals = tiny.sentences("test").visuals
    rows = inputs.images.load(visuals, lambda items, *_: items).take(visuals.rows * 0)[:1]
    texts = ["a dog on a monocycle", "a whippet", "a disc", "a gizmo and a disc", "nothing"]
    with torch.no_grad():
        scores = matcher.score(
            matcher.encode_images(inputs.images.finish(rows)), matcher.encode_texts(*inputs.texts.texts(texts))
        )[0]
        pixels = inputs.images.pixels.finish(inputs.images.pixels.images([visuals.open(0)]))
        model = AutoModelForImageClassification.from_pretrained(tiny_classifier).eval()
        seen = torch.softmax(model(pixels).logits[0], dim=0).tolist()
    expected = [seen[1] + seen[2], seen[1], seen[3], seen[3] + seen[4], 0.0]
    torch.testing.assert_close(scores, torch.tensor(expected), rtol=1e-2, atol=1e-3)  # features are kept in half
    assert evaluate_retrieval(matcher, inputs, tiny.sentences("test")).retrieval.t2i.queries == 14


def test_without_wordnet_a_warning_is_logged_and_only_names_are_used(
    tiny, tiny_classifier, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(WordNet, "find", lambda: None)
    with caplog.at_level(logging.WARNING):
        run(tiny, tmp_path / "run", f"backbone={tiny_classifier}")
    assert "WordNet is not installed" in caplog.text
    texts = Run.open(tmp_path / "run").load()[1].texts
    assert texts.named_concepts("a monocycle") == [2]
    assert texts.named_concepts("a dog") == []


def test_captions_of_no_label_are_left_out_of_a_library_and_counted(tiny, tiny_classifier, tmp_path, caplog):
    run(tiny, tmp_path / "run", f"backbone={tiny_classifier}", "expand=none")
    asked = ["index", str(tmp_path / "run"), str(tiny.folder), "--out", str(tmp_path / "library"), "--device", "cpu"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    (said,) = [r.getMessage() for r in caplog.records if "captions are left out" in r.getMessage()]
    left = int(said.split()[0])
    texts = len(tiny.column("captions", "text"))
    assert 0 < left <= texts
    assert f"{texts - left} captions" in " ".join(done.output.split())


def test_a_classifier_is_needed(tiny, tmp_path):
    with pytest.raises(UserError, match="recipe tags needs a classifier"):
        run(tiny, tmp_path / "run")


def test_probabilities_below_the_minimum_count_as_zero(tiny, tiny_classifier, tmp_path):
    run(tiny, tmp_path / "run", f"backbone={tiny_classifier}", "min_probability=1.0", "expand=none")
    matcher = Run.open(tmp_path / "run").load()[0]
    assert matcher.encode_images(torch.randn(3, matcher.settings.image_dim)).vectors.sum() == 0


def test_no_captions_are_needed_and_without_dev_captions_nothing_is_measured(
    tiny_draft, tiny_classifier, tmp_path, caplog
):
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    for image in draft.images:
        image.split = "dev" if image.split == "dev" else "test"
    collection = write_draft(draft, tmp_path / "collection")
    assert run(collection, tmp_path / "run", f"backbone={tiny_classifier}", "expand=none")["rsum"] >= 0
    with pytest.raises(UserError, match="no captioned images in split train"):
        train_preset("vse", collection, tmp_path / "vse")
    for image in draft.images:
        image.split = "test"
    without = write_draft(draft, tmp_path / "without")
    found = run(without, tmp_path / "none", f"backbone={tiny_classifier}", "expand=none")
    assert found == {"epoch": -1, "step": 0}
    assert "no captioned images in split dev: the matcher is not evaluated" in caplog.text
    Run.open(tmp_path / "none").load()
    with pytest.raises(UserError, match="no captioned images in split train"):
        train_preset("vse", without, tmp_path / "other")
