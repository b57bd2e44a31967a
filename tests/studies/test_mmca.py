from __future__ import annotations

import gzip
from dataclasses import replace

import pytest
import torch

from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext
from calligram.studies import rows
from calligram.studies.claims import ASSETS, Study
from calligram.studies.mmca import MMCA
from calligram.studies.reproduce import reproduce_study
from calligram.studies.results import read_results

SMALL = ("batch=4", "dim=16", "precision=fp32", "image.size=32", "epochs=1", "ema_decay=0")
MMCA_SMALL = ("mmca.heads=4", "mmca.filters=8")
BY_ROW = {
    "mmca": MMCA_SMALL,
    "alpha = 0": MMCA_SMALL,
    "vse": (),
    "mmca + AOQ": (*MMCA_SMALL, "epochs=2", "warmup_epochs=1", "offline.texts=4", "offline.images=2"),
    "mmca + pseudo pairs + adversaries": (
        *MMCA_SMALL, "pseudo.region_source=finder", "steps=2", "adversarial.hidden=4",
    ),
    "mmca + instance": (*MMCA_SMALL, "candidates=2"),
    "best": (),
    "best, one vse": (),
    "best, one vse, distilled": (),
    "best, one vse, all patches, distilled, further texts": (),
    "best, a member, distilled further": (),
    "best, one mmca": (*MMCA_SMALL, "candidates=2"),
    "best, one vse + AOQ": (
        "offline.texts=4", "offline.images=2", "stages.2.epochs=1", "stages.2.batch=4",
    ),
    "vse, distilled": (),
    "three vse": (),
    "vse, distilled from three": (),
    "a member of three, distilled further": (),
    "alpha = 0, distilled": MMCA_SMALL,
}  # fmt: skip
"""rows that are run, with settings of tiny networks"""


@pytest.fixture
def small_study(tmp_path, tiny_classifier, tiny_bert, monkeypatch) -> Study:
    """Some rows of the study as they are, but for sizes and networks."""
    models = tmp_path / "assets" / "models"
    models.mkdir(parents=True)
    for name in ("efficientnet_lite2_256", "mobilenet_v2_1.0_224", "dinov2_small_saliency"):
        (models / name).symlink_to(tiny_classifier)
    for name in ("minilm", "mpnet"):
        (models / name).symlink_to(tiny_bert)
    (tmp_path / "assets" / "text").mkdir()
    with gzip.open(tmp_path / "assets" / "text" / "flickr30k-captions.txt.gz", "wt") as file:
        file.write("\n".join(f"a further text {number}" for number in range(20)))
    monkeypatch.setenv(ASSETS, str(tmp_path / "assets"))
    chosen = tuple(
        replace(row, changes=(*row.changes, *SMALL, *BY_ROW[row.name])) for row in MMCA.rows if row.name in BY_ROW
    )
    claims = tuple(claim for claim in MMCA.claims if {claim.better, claim.worse} <= {*BY_ROW})
    return Study("mmca", chosen, claims, sheets=MMCA.sheets)


def test_rows_that_add_to_mmca_run_one_after_the_other(spoken_tiny, small_study, tmp_path, monkeypatch):
    # Figures take half of the time, and other tests look at them. Here only their places count.
    drawn_found, drawn_curves = [], []
    monkeypatch.setattr(rows, "draw_found_images", lambda *_, **__: drawn_found.append(1))
    monkeypatch.setattr(rows, "draw_curves", lambda _, file: drawn_curves.append(file.name))
    verdicts = reproduce_study(
        small_study, spoken_tiny, seeds=1, results=tmp_path / "results", runs=tmp_path / "runs",
        context=RunContext(torch.device("cpu")),
    )  # fmt: skip
    lines = {line.study.partition(": ")[2]: line for line in read_results(tmp_path / "results")}
    assert set(lines) == set(BY_ROW)
    assert lines["best"].members == 3
    assert lines["mmca + instance"].members == 1
    assert lines["three vse"].members == 3
    assert lines["vse, distilled"].settings["distillation.teacher"] == "row:mmca"
    assert {verdict.verdict for verdict in verdicts} == {"undecided"}
    drawn = [file.parent.name for file in (tmp_path / "runs").glob("*/found-texts.png")]
    assert drawn == ["mmca-mmca-tiny-0"]
    assert len(drawn_found) == len(BY_ROW) + 1  # a sheet of every row, and the sheet of the figure
    assert len(set(drawn_curves)) == len(BY_ROW)


def test_preset_best_distilled_has_the_settings_of_its_row():
    changes = MMCA.row("best, a member, distilled further").changes
    of_preset = ("terms=", "lr=", "image.region_dropout=")
    others = [change for change in changes if not change.startswith(of_preset)]
    assert len(others) == len(changes) - len(of_preset)
    assert resolve(PRESETS["best-distilled"].defaults, others) == resolve(PRESETS["best"].defaults, changes)
