"""The document of results is what ``calligram report`` makes of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from calligram.studies.report import write_report

ROOT = Path(__file__).parent.parent


def test_the_document_has_the_results_that_there_are(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "results", tmp_path / "results")
    monkeypatch.chdir(tmp_path)  # pictures are named as they lie from here
    made = write_report(Path("results"), Path("docs"))
    same = made.read_text(encoding="utf-8") == (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert same, 'docs/results.md is not what the results say; run "calligram report"'
