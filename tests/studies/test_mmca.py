from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from calligram.recipes.parts.run import RunContext
from calligram.studies.claims import ASSETS, Study
from calligram.studies.mmca import MMCA
from calligram.studies.reproduce import reproduce_study
from calligram.studies.results import read_results

SMALL = ("batch=4", "dim=16", "precision=fp32", "image.size=32", "epochs=1", "ema_decay=0")
MMCA_SMALL = ("mmca.heads=4", "mmca.filters=8")
BY_RECIPE = {
    "fragments": MMCA_SMALL,
    "aoq": (*MMCA_SMALL, "epochs=2", "warmup_epochs=1", "mined.texts=4", "mined.images=2"),
    "a3vse": (*MMCA_SMALL, "pseudo.region_source=finder", "steps=2", "adversary.hidden=4"),
    "best": (*MMCA_SMALL, "candidates=2"),
    "distil": MMCA_SMALL,
}
CHOSEN = (
    "mmca", "alpha = 0", "vse", "mmca + AOQ", "mmca + pseudo pairs + adversaries", "mmca + instance", "best",
    "vse, distilled", "alpha = 0, distilled",
)  # fmt: skip


@pytest.fixture
def small_study(tmp_path, tiny_classifier, tiny_bert, monkeypatch) -> Study:
    """Some rows of the study as they are, but for sizes and networks."""
    models = tmp_path / "assets" / "models"
    models.mkdir(parents=True)
    (models / "mobilenet_v2_1.0_224").symlink_to(tiny_classifier)
    (models / "minilm").symlink_to(tiny_bert)
    monkeypatch.setenv(ASSETS, str(tmp_path / "assets"))
    rows = tuple(
        replace(row, changes=(*row.changes, *SMALL, *BY_RECIPE.get(row.recipe, ())))
        for row in MMCA.rows
        if row.name in CHOSEN
    )
    claims = tuple(claim for claim in MMCA.claims if {claim.better, claim.worse} <= {*CHOSEN})
    return Study("mmca", rows, claims, sheets=MMCA.sheets)


def test_rows_that_add_to_mmca_run_one_after_the_other(spoken_tiny, small_study, tmp_path):
    verdicts = reproduce_study(
        small_study, spoken_tiny, seeds=1, results=tmp_path / "results", runs=tmp_path / "runs",
        context=RunContext(torch.device("cpu")),
    )  # fmt: skip
    lines = {line.study.partition(": ")[2]: line for line in read_results(tmp_path / "results")}
    assert set(lines) == set(CHOSEN)
    assert lines["best"].members == 3
    assert lines["mmca + instance"].members == 1
    assert lines["vse, distilled"].settings["teacher"] == "row:mmca"
    assert {verdict.verdict for verdict in verdicts} == {"one seed"}
    drawn = [file.parent.name for file in (tmp_path / "runs").glob("*/found-texts.png")]
    assert drawn == ["mmca-mmca-tiny-0"]
