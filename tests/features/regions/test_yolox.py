from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from calligram.errors import UserError
from calligram.features.regions.detectors import COCO_CLASSES, YoloX, class_names, decode_predictions, letterbox


def test_decoding_is_that_of_the_definition():
    """Maps of 8x12, 4x6 and 2x3 cells for 64 x 96 pixels, one prediction a cell."""
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(8 * 12 + 4 * 6 + 2 * 3, 5 + 2)).astype(np.float32)
    boxes, scores = decode_predictions(raw, (64, 96))
    number = 0
    for stride in (8, 16, 32):
        for row in range(64 // stride):
            for column in range(96 // stride):
                x, y, w, h, objectness, *classes = (float(v) for v in raw[number])
                centre = ((x + column) * stride, (y + row) * stride)
                side = (math.exp(w) * stride, math.exp(h) * stride)
                expected = [centre[i] + sign * side[i] / 2 for sign in (-1, 1) for i in (0, 1)]
                assert boxes[number].tolist() == pytest.approx(expected, rel=1e-4)
                assert scores[number].tolist() == pytest.approx([objectness * c for c in classes], rel=1e-4)
                number += 1


def test_an_output_of_another_kind_of_detector_is_refused():
    with pytest.raises(UserError, match="100 predictions for 64 x 96 pixels, which is no YOLOX"):
        decode_predictions(np.zeros((100, 85), np.float32), (64, 96))


def test_the_letterbox_keeps_the_shape_and_fills_with_grey():
    image = Image.new("RGB", (40, 20), (10, 20, 30))
    pixels, scale = letterbox(image, (64, 80))
    assert scale == 2
    assert pixels.shape == (1, 3, 64, 80)
    assert pixels[0, :, 0, 0].tolist() == [30, 20, 10]  # blue, green, red
    assert (pixels[0, :, 40:] == 114).all()
    assert (pixels[0, :, :40] != 114).all()


def test_there_are_eighty_classes_of_coco_and_numbers_for_others():
    assert len(set(COCO_CLASSES)) == 80
    assert class_names(80)[0] == "person"
    assert list(class_names(2)) == ["class 0", "class 1"]


def test_files_that_are_not_networks_are_refused(tmp_path):
    with pytest.raises(UserError, match="there is no detector"):
        YoloX.load(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("not a network")
    with pytest.raises(UserError, match=r"text\.onnx is not a network that onnxruntime opens"):
        YoloX.load(tmp_path / "text.onnx")
