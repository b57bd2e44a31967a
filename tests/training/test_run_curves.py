from __future__ import annotations

import json

from PIL import Image

from calligram.evaluation.compare import draw_dev_curves, last_round_metrics
from calligram.training.runs import draw_curves, errors_by_epoch

ROWS = [
    {"step": 10, "stage": "I", "epoch": 0, "loss": 2.0, "instance_text_error": 1.0, "instance_image_error": 0.5},
    {"step": 20, "stage": "I", "epoch": 0, "loss": 1.5, "instance_text_error": 0.5, "instance_image_error": 0.1},
    {"step": 20, "stage": "I", "epoch": 0, "dev": {"i2t_r1": 10.0}},
    {"step": 30, "stage": "I", "epoch": 1, "loss": 1.2, "instance_text_error": 0.25, "instance_image_error": 0.0},
    {"step": 40, "stage": "II", "epoch": 0, "loss": 1.1, "instance_text_error": 0.5},
]


def test_error_rates_are_averaged_per_epoch_of_a_stage():
    """Of the text tower: (1 + 0.5) / 2, then 0.25, then 0.5 in the second stage, whose epochs start at 0."""
    found = errors_by_epoch(ROWS)
    assert found["instance_text_error"] == [(20, 0.75), (30, 0.25), (40, 0.5)]
    assert found["instance_image_error"] == [(20, 0.3), (30, 0.0)]


def test_error_rates_are_drawn_if_there_are_any(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    with_errors = Image.open(draw_curves(tmp_path)).width
    plain = [{key: value for key, value in row.items() if not key.endswith("_error")} for row in ROWS]
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(row) for row in plain))
    assert Image.open(draw_curves(tmp_path, tmp_path / "other.png")).width < with_errors


def test_runs_are_compared_over_the_epochs_of_their_last_round(tmp_path):
    def rows(*stages):
        return [{"stage": stage, "dev": {"i2t_r1": float(n), "t2i_r1": 1.0}} for n, stage in enumerate(stages)]

    both = rows("round 1, warm-up", "round 1, ranking", "round 2, warm-up", "round 2, adaptive")
    assert [found["i2t_r1"] for found in last_round_metrics([{"loss": 1.0}, *both])] == [2.0, 3.0]
    plain = rows("warm-up", "ranking")
    assert [found["i2t_r1"] for found in last_round_metrics(plain)] == [0.0, 1.0]
    assert last_round_metrics([]) == []
    drawn = draw_dev_curves({"one": both, "two": plain}, tmp_path / "both.png")
    assert Image.open(drawn).width > 900
