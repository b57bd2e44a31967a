from __future__ import annotations

import json

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from calligram.cli.main import app
from calligram.errors import UserError
from calligram.features.images.pixels import PixelInput
from calligram.features.images.region_input import RegionInput
from calligram.features.inputs import Inputs
from calligram.features.regions.region_features import RegionCrops
from calligram.features.texts.text_vectors import TextVectorInput, TextVectorSettings
from calligram.models import catalog
from calligram.models.catalog import INPUTS_FOLDER, MATCHER_FILE, RUN_FILE, WEIGHTS_FILE
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.two_branch import TwoBranchEmbedding, TwoBranchSettings


@pytest.fixture
def run(tmp_path):
    """A run folder of a network of regions and phrases, and a picture next to it."""
    folder = tmp_path / "run"
    folder.mkdir()
    texts = TextVectorInput.fit(["a red disc", "the snow"], None, TextVectorSettings(kind="tfidf"))
    regions = RegionInput(RegionCrops(PixelInput(16), 2), "grid", "grid", 20)
    torch.manual_seed(0)
    shape = TwoBranchSettings(
        ImageArchitecture(feature_dim=regions.dim), TextArchitecture("vectors", state_dim=texts.dim), 4, hidden=8
    )
    (folder / RUN_FILE).write_text("{}\n")
    catalog.save(TwoBranchEmbedding(shape), folder / MATCHER_FILE, folder / WEIGHTS_FILE)
    Inputs(regions, texts).save(folder / INPUTS_FOLDER)
    Image.effect_noise((40, 30), 80).convert("RGB").save(tmp_path / "p.png")
    return folder


def called(verb: str, *arguments: object) -> str:
    done = CliRunner().invoke(app, [verb, *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_boxes_are_printed_and_drawn(run, tmp_path):
    picture, drawn = tmp_path / "p.png", tmp_path / "deep" / "b.png"
    found = json.loads(called("localize", run, picture, "a red disc", "-k", 2, "--json", "--out", drawn))
    assert (found["width"], found["height"], found["unknown"]) == (40, 30, [])
    hits = found["phrases"][0]["hits"]
    assert [hit["rank"] for hit in hits] == [1, 2]
    assert all(0 <= x0 < x1 <= 40 and 0 <= y0 < y1 <= 30 for x0, y0, x1, y1 in (hit["box"] for hit in hits))
    assert Image.open(drawn).width >= 40
    assert f"{hits[0]['score']:.3f}" in called("localize", run, picture, "a red disc")


def test_unknown_words_are_printed_and_get_no_box(run, tmp_path):
    picture = tmp_path / "p.png"
    found = json.loads(called("localize", run, picture, "the zebra", "--json"))
    assert found["phrases"][0]["hits"] == []
    assert found["unknown"] == ["zebra"]
    printed = called("localize", run, picture, "the zebra", "--out", tmp_path / "b.png")
    assert "unknown words: zebra" in printed
    assert "has no box" in printed
    assert json.loads(called("localize", run, picture, "a striped disc", "--json"))["phrases"][0]["hits"]


def test_a_run_that_finds_phrases_explains_no_sentence(run, tmp_path):
    with pytest.raises(UserError, match="finds phrases within pictures"):
        called("explain", run, tmp_path / "p.png", "a red disc")
