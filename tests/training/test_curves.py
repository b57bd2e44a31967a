from __future__ import annotations

import json

from PIL import Image

from calligram.training.curves import draw_curves, errors_by_epoch

ROWS = [
    {"step": 10, "stage": "I", "epoch": 0, "loss": 2.0, "instance_text_error": 1.0, "instance_image_error": 0.5},
    {"step": 20, "stage": "I", "epoch": 0, "loss": 1.5, "instance_text_error": 0.5, "instance_image_error": 0.1},
    {"step": 20, "stage": "I", "epoch": 0, "dev": {"i2t_r1": 10.0}},
    {"step": 30, "stage": "I", "epoch": 1, "loss": 1.2, "instance_text_error": 0.25, "instance_image_error": 0.0},
    {"step": 40, "stage": "II", "epoch": 0, "loss": 1.1, "instance_text_error": 0.5},
]


def test_errors_are_means_over_an_epoch_of_a_stage():
    """Of the text branch: (1 + 0.5) / 2, then 0.25, then 0.5 in the second stage, whose epochs begin again."""
    found = errors_by_epoch(ROWS)
    assert found["instance_text_error"] == [(20, 0.75), (30, 0.25), (40, 0.5)]
    assert found["instance_image_error"] == [(20, 0.3), (30, 0.0)]


def test_they_are_drawn_where_there_are_any(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    with_errors = Image.open(draw_curves(tmp_path)).width
    plain = [{key: value for key, value in row.items() if not key.endswith("_error")} for row in ROWS]
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(row) for row in plain))
    assert Image.open(draw_curves(tmp_path, tmp_path / "other.png")).width < with_errors
