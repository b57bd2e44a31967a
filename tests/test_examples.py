"""The scripts in examples/ run as a user runs them: in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import calligram as cg
from calligram.scenes.generate import generate_scenes

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_a_matcher_of_your_own_is_trained_searched_and_exported(tmp_path):
    scenes = tmp_path / "scenes"
    generate_scenes(scenes, images=60, size=48)
    photos = tmp_path / "photos"
    photos.mkdir()
    pictures = cg.Collection.open(scenes).pictures
    for row in range(5):
        pictures.open(row).save(photos / f"{row}.png")
    arguments = [sys.executable, str(EXAMPLES / "own_matcher.py"), str(scenes), str(photos), str(tmp_path / "out")]
    done = subprocess.run(arguments, capture_output=True, text=True)
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
    found = subprocess.run([sys.executable, "-m", "calligram", *words], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
