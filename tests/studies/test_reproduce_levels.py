from __future__ import annotations

import numpy as np
from PIL import Image

from calligram.studies.reproduce import Level, draw_levels


def test_each_model_is_a_curve_and_one_without_captions_a_horizontal_line(tmp_path):
    curve = {"one": [Level(100, 5.0, 4.0), Level(10, 1.0, 2.0)]}
    counts = []
    for name, curves in (("alone", curve), ("both", {**curve, "none": [Level(0, 3.0, 3.5)]})):
        pixels = np.asarray(Image.open(draw_levels(curves, tmp_path / f"{name}.png")).convert("RGB")).astype(int)
        blue, orange = pixels[..., 2] > pixels[..., 0] + 60, pixels[..., 0] > pixels[..., 2] + 100
        assert blue.sum() > 100
        counts.append(orange.sum())
    assert counts[0] == 0
    assert counts[1] > 100
