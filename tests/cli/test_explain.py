from __future__ import annotations

import json

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from calligram.cli.main import app
from calligram.errors import UserError
from calligram.features.inputs import Inputs
from calligram.features.pixels import PixelInput
from calligram.features.vocabulary import Vocabulary
from calligram.models import catalog
from calligram.models.stored import BEST, INPUTS, MATCHER, RUN
from calligram.models.vse import VSE, VSESettings


@pytest.fixture
def run(tmp_path):
    """A run folder as training leaves it, and a picture beside it."""
    folder = tmp_path / "run"
    folder.mkdir()
    words = Vocabulary.build(["a red disc"], min_count=1)
    torch.manual_seed(0)
    matcher = VSE(VSESettings(vocabulary=len(words), dim=8, channels=(4,), word_dim=6, hidden=8))
    (folder / RUN).write_text("{}\n")
    catalog.save(matcher, folder / MATCHER, folder / BEST)
    Inputs(PixelInput(16), words).save(folder / INPUTS)
    Image.effect_noise((40, 30), 80).convert("RGB").save(tmp_path / "p.png")
    return folder


def explain(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["explain", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_words_are_weighed_printed_and_drawn(run, tmp_path):
    picture, drawn = tmp_path / "p.png", tmp_path / "deep" / "e.png"
    found = json.loads(explain(run, picture, "a red [disc]", "--json", "--out", drawn))
    assert [word["word"] for word in found["words"]] == ["a", "red", "disc"]
    assert set(found["words"][0]) == {"word", "start", "end", "weight"}
    assert Image.open(drawn).width >= 320
    printed = explain(run, picture, "a red [disc]", "--out", drawn)
    assert f"{found['words'][2]['weight']:+.4f}" in printed
    assert f"score {found['score']:.4f}" in printed
    assert "drawn:" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("p.png", "dog"), "give at least two, got 1"),
        (("q.png", "a dog"), "q.png"),
        (("p.png", "a dog", "--out", "e.gif"), "must end in .png"),
    ],
)
def test_what_cannot_be_explained_is_said(arguments, message, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        explain(run, *arguments)
