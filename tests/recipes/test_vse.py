from __future__ import annotations

import pytest
import torch

from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.recipes.catalog import RECIPES
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_recipe
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


def run(collection, out, *changes):
    recipe = RECIPES["vse"]
    settings = resolve(recipe.defaults, [*SMALL, *changes])
    return run_recipe(recipe, settings, collection, out, around=RunContext(torch.device("cpu")))


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
    settings = ("image.train=true", "image.size=32", "epochs=40", "lr=0.003", "batch=14", "average=0")
    best = run(tiny, tmp_path / "run", f"image.backbone={backbone}", *settings)
    assert best["t2i_r1"] > 40  # chance is 1 in 6


def test_hidden_words_and_frozen_parts(tiny, tmp_path):
    run(
        tiny,
        tmp_path / "run",
        "image.size=16",
        "image.channels=4",
        "epochs=2",
        "text.blank=0.3",
        "optim.frozen=text.words",
    )
    assert (tmp_path / "run" / "best.safetensors").is_file()


def test_stored_features_are_trained_on(stored_tiny, tmp_path):
    best = run(stored_tiny, tmp_path / "run", "image.features=colour", "epochs=3")
    assert best["rsum"] > 0
