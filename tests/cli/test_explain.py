from __future__ import annotations

import json

import pytest
import torch
import transformers
from PIL import Image
from typer.testing import CliRunner

from calligram.cli.main import app
from calligram.errors import UserError
from calligram.features.images.backbones import Backbone, BackboneInput
from calligram.features.images.pixels import PixelInput
from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models import catalog
from calligram.models.catalog import INPUTS_FOLDER, MATCHER_FILE, RUN_FILE, WEIGHTS_FILE
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.scan import SCAN, SCANSettings
from calligram.models.vse import VSE, VSESettings
from calligram.models.vsrn import VSRN, VSRNSettings
from calligram.search.explain.drawing import draw_words
from calligram.search.explain.word_importance import WordImportance, WordImportances


@pytest.fixture
def run(tmp_path):
    """A run folder as training leaves it, and a picture next to it."""
    folder = tmp_path / "run"
    folder.mkdir()
    words = Vocabulary.build(["a red disc"], min_count=1)
    torch.manual_seed(0)
    matcher = VSE(
        VSESettings(
            ImageArchitecture("cnn", channels=(4,)),
            TextArchitecture(vocabulary=len(words), word_dim=6, hidden=8, pooling="last"),
            8,
        )
    )
    (folder / RUN_FILE).write_text("{}\n")
    catalog.save(matcher, folder / MATCHER_FILE, folder / WEIGHTS_FILE)
    Inputs(PixelInput(16), words).save(folder / INPUTS_FOLDER)
    Image.effect_noise((40, 30), 80).convert("RGB").save(tmp_path / "p.png")
    return folder


def explain(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["explain", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_word_importance_is_printed_and_drawn(run, tmp_path):
    picture, drawn = tmp_path / "p.png", tmp_path / "deep" / "e.png"
    found = json.loads(explain(run, picture, "a red [disc]", "--json", "--out", drawn))
    assert [word["word"] for word in found["words"]] == ["a", "red", "disc"]
    assert set(found["words"][0]) == {"word", "start", "end", "weight"}
    assert Image.open(drawn).width >= 320
    printed = explain(run, picture, "a red [disc]", "--out", drawn)
    assert f"{found['words'][2]['weight']:+.4f}" in printed
    assert f"score {found['score']:.4f}" in printed
    assert "drawn:" in printed


@pytest.fixture
def scan(tmp_path):
    """A run whose words look at the four cells of a picture's middle square."""
    return _written(tmp_path / "scan", SCAN, SCANSettings)


@pytest.fixture
def vsrn(tmp_path):
    """A run that compares single vectors of the same cells."""
    return _written(tmp_path / "vsrn", VSRN, VSRNSettings)


def _written(folder, kind, settings):
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    backbone = Backbone(transformers.ViTModel(transformers.ViTConfig(**shape, image_size=16, patch_size=8))).eval()
    words = Vocabulary.build(["a red disc"], min_count=1)
    folder.mkdir()
    pooling = "last" if kind is VSRN else "mean"
    text = TextArchitecture(vocabulary=len(words), word_dim=6, hidden=8, bidirectional=True, pooling=pooling)
    matcher = kind(settings(ImageArchitecture("features", 16), text, dim=8))
    (folder / RUN_FILE).write_text("{}\n")
    catalog.save(matcher, folder / MATCHER_FILE, folder / WEIGHTS_FILE)
    Inputs(BackboneInput(backbone, PixelInput(16, "crop"), "vit", "grid"), words).save(folder / INPUTS_FOLDER)
    Image.effect_noise((40, 30), 80).convert("RGB").save(folder.parent / "p.png")
    return folder


def test_unknown_words_are_printed(run, tmp_path):
    picture = tmp_path / "picture.png"
    Image.new("RGB", (24, 24), (200, 30, 30)).save(picture)
    assert json.loads(explain(run, picture, "a zyzzyva", "--json"))["unknown"] == ["zyzzyva"]
    assert "unknown words, which this run cannot distinguish: zyzzyva" in " ".join(
        explain(run, picture, "a zyzzyva").split()
    )
    assert json.loads(explain(run, picture, "a red disc", "--json"))["unknown"] == []


def test_attention_is_printed_drawn_and_given_as_numbers(scan, tmp_path):
    picture, drawn = tmp_path / "p.png", tmp_path / "e.png"
    found = json.loads(explain(scan, picture, "a red [disc]", "--json", "--out", drawn, "--at", "0.2,0.9"))
    looks = found["attention"]
    assert looks["boxes"][0] == pytest.approx([0.125, 0, 0.5, 0.5])
    assert [sum(row) for row in looks["words"]] == pytest.approx([1] * 3, abs=1e-4)
    assert [len(row) for row in looks["words"]] == [4] * 3
    whole = [sum(row) + rest for row, rest in zip(looks["regions"], looks["rest"], strict=True)]
    assert whole == pytest.approx([1] * 4, abs=1e-4)
    assert found["region"] == 2
    assert looks["scored"] == ["words"]
    sheet = Image.open(drawn)
    printed = explain(scan, picture, "a red [disc]", "--out", drawn, "--at", "0.2,0.9")
    assert f"{max(looks['words'][1]):.0%}" in printed
    assert "the region lower left attends to:" in " ".join(printed.split())
    assert f"{max(looks['regions'][2]):.0%}" in printed
    alone = draw_words(Image.open(picture), WordImportances(0.0, [WordImportance("a", 0, 1, 0.0)]))
    assert sheet.height > alone.height + 200


def test_a_matcher_of_single_vectors_prints_that_it_has_no_attention(vsrn, tmp_path):
    picture, drawn = tmp_path / "p.png", tmp_path / "e.png"
    printed = " ".join(explain(vsrn, picture, "a red disc", "--out", drawn).split())
    assert "compares one vector of the picture with one vector of the sentence, so it has no attention" in printed
    assert "red" in printed
    assert "drawn:" in printed
    assert json.loads(explain(vsrn, picture, "a red disc", "--json"))["attention"] is None
    with pytest.raises(UserError, match="--at needs attention, and this matcher compares one vector"):
        explain(vsrn, picture, "a red disc", "--at", "0.5,0.5")


@pytest.mark.parametrize("at", ["here", "0.5", "0.5,1.5", "1,2,3"])
def test_a_point_is_two_shares(scan, tmp_path, at):
    with pytest.raises(UserError, match=f"--at {at} is not a point; give X,Y as shares of the picture"):
        explain(scan, tmp_path / "p.png", "a red disc", "--at", at)


def test_a_point_outside_of_all_regions_is_refused(scan, tmp_path):
    with pytest.raises(UserError, match="it uses the middle square"):
        explain(scan, tmp_path / "p.png", "a red disc", "--at", "0.01,0.5")


def test_an_image_of_a_collection_is_explained_by_its_stored_features(stored_tiny, tmp_path):
    words = Vocabulary.build(["a red disc"], min_count=1)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RUN_FILE).write_text("{}\n")
    matcher = SCAN(
        SCANSettings(
            ImageArchitecture(feature_dim=4),
            TextArchitecture(vocabulary=len(words), word_dim=6, hidden=8, bidirectional=True),
            8,
        )
    )
    catalog.save(matcher, tmp_path / "run" / MATCHER_FILE, tmp_path / "run" / WEIGHTS_FILE)
    Inputs(StoredInput("colour"), words).save(tmp_path / "run" / INPUTS_FOLDER)
    drawn = tmp_path / "e.png"
    of = ("--collection", stored_tiny.folder)
    found = json.loads(explain(tmp_path / "run", "train-0", "a red disc", *of, "--json", "--out", drawn))
    assert found["attention"]["boxes"] is None  # these features came without
    assert [len(row) for row in found["attention"]["words"]] == [3] * 3
    assert drawn.is_file()
    assert "the stored features have no boxes" in explain(tmp_path / "run", "train-0", "a red disc", *of)
    with pytest.raises(UserError, match="--at needs boxes, and the stored features have none; leave it out"):
        explain(tmp_path / "run", "train-0", "a red disc", *of, "--at", "0.5,0.5")
    with pytest.raises(UserError, match="has no image 'nobody'"):
        explain(tmp_path / "run", "nobody", "a red disc", *of)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("p.png", "dog"), "give at least two words, got 1"),
        (("q.png", "a dog"), "q.png"),
        (("p.png", "a dog", "--out", "e.gif"), "must end in .png"),
    ],
)
def test_invalid_arguments_are_reported(arguments, message, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        explain(run, *arguments)
