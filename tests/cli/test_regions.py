from __future__ import annotations

import json
import shutil

import pytest


@pytest.fixture
def copy(tiny, tmp_path):
    shutil.copytree(tiny.folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_regions_are_found_measured_and_recorded(calligram, copy, tmp_path):
    first = calligram("regions", copy, "--proposals", "grid", "--top", "10", "--split", "test")
    assert first.returncode == 0, first.stderr
    assert "60 regions 'grid' in 6 images" in first.stdout
    done = calligram(
        "regions", copy, "--proposals", "grid", "--top", "10", "--split", "test", "--recall",
        "--record", tmp_path / "results" / "proposals.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "6 images had regions already" in done.stdout
    assert "6 phrases in 6 images" in done.stdout
    written = json.loads((tmp_path / "results" / "proposals.json").read_text())
    assert {"command", "commit", "hardware", "proposals", "reports"} == set(written)
    assert written["proposals"]["grid"]["settings"]["top"] == 10
    assert written["reports"][0]["rows"][0]["recall"]["10"] == 100.0
    assert written["reports"][0]["rows"][0]["recall"]["36"] is None


def test_boxes_are_written_and_read(calligram, copy, tmp_path):
    file = tmp_path / "grid.parquet"
    done = calligram("regions", copy, "--proposals", "grid", "--top", "4", "--split", "test", "--save-boxes", file)
    assert "24 boxes of 6 images" in done.stdout.replace("\n", " ")
    done = calligram("regions", copy, "--proposals", file, "--name", "moved")
    assert "24 regions 'moved' in 6 images" in done.stdout
    done = calligram("regions", copy, "--name", "none", "--save-boxes", file)
    assert "has no regions 'none' (it has: 'grid', 'moved')" in " ".join(done.stderr.split())


def test_missing_options_are_reported_without_a_traceback(calligram, copy):
    done = calligram("regions", copy)
    assert done.returncode == 2
    assert "give --proposals METHOD to find regions, --name NAME" in done.stderr
    done = calligram("regions", copy, "--proposals", "grit")
    assert "unknown proposals 'grit'; did you mean 'grid'?" in done.stderr
    done = calligram("regions", copy, "--recall")
    assert "no proposals for split all" in done.stderr


def test_a_size_that_the_backbone_does_not_accept_is_one_line(calligram, copy, tiny_clip):
    done = calligram("regions", copy, "--proposals", "grid", "--backbone", tiny_clip, "--size", 20)
    assert done.returncode == 2
    message = " ".join(done.stderr.split())
    assert "does not accept images of 20 x 20 pixels" in message
    assert "its own size is 16 (setting image.size, or --size of calligram regions)" in message
    assert "Traceback" not in message
    assert "greater than or equal to 1" in calligram("regions", copy, "--size", 0).stderr
