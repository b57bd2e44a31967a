"""The scripts in examples/ run: the one of an own matcher in a process of its own, those of the papers in this one."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

import calligram as cg
from calligram.scenes.generate import generate_scenes

EXAMPLES = Path(__file__).parent.parent / "examples"
PAPERS = ("two_branch", "dual_path", "aoq", "a3vse", "mmca")
"""scripts of the papers"""
LONGEST_SCRIPT_LINES = 70


def test_a_matcher_of_your_own_is_trained_searched_and_exported(tmp_path, preloaded):
    scenes = tmp_path / "scenes"
    generate_scenes(scenes, images=60, size=48)
    photos = tmp_path / "photos"
    photos.mkdir()
    pictures = cg.Collection.open(scenes).pictures
    for row in range(5):
        pictures.open(row).save(photos / f"{row}.png")
    script = f"import runpy; runpy.run_path({str(EXAMPLES / 'own_matcher.py')!r}, run_name='__main__')"
    done = preloaded.run(script, scenes, photos, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "text to image R@1" in done.stdout
    assert ".png" in done.stdout
    assert (tmp_path / "out" / "onnx" / "image.onnx").is_file()
    words = [
        "--import",
        str(EXAMPLES / "own_matcher.py"),
        "search",
        str(tmp_path / "out" / "library"),
        "a dog",
        "--all",
    ]
    found = preloaded.run("from calligram.cli.main import main; main()", *words)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("paper", PAPERS)
def test_the_script_of_a_paper_trains_and_evaluates(paper, tiny, tmp_path, monkeypatch, capsys):
    arguments = [str(tiny.folder), str(tmp_path / "run"), "--epochs", "1", *(("--share", "0.5") * (paper == "a3vse"))]
    monkeypatch.setattr(sys, "argv", [f"{paper}.py", *arguments])
    runpy.run_path(str(EXAMPLES / f"{paper}.py"), run_name="__main__")
    assert re.search(r"text to image R@1 \d+\.\d, rsum \d+", capsys.readouterr().out)
    about = cg.load(tmp_path / "run").about
    assert about["preset"] == "fit"
    assert (tmp_path / "run" / "best.safetensors").is_file()


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda script: script.name)
def test_a_script_is_short_and_names_its_paper(script):
    source = script.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= LONGEST_SCRIPT_LINES
    if script.stem in PAPERS:
        assert re.search(r'^"""[^\n]+: \w+ et al\., ".+" \(20\d\d\)\.\n', source)
        assert "argparse" in source
        assert f"python examples/{script.name} data/scenes" in source


def test_every_paper_has_a_script():
    assert {script.stem for script in EXAMPLES.glob("*.py")} == {*PAPERS, "own_matcher"}
