"""Detectors of transformers, as tiny random networks on disk, and YOLOX."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from calligram.errors import UserError
from calligram.features.regions.detectors import (
    COCO_CLASSES,
    Detector,
    YoloX,
    class_names,
    decode_predictions,
    letterbox,
)
from calligram.features.regions.proposers import load_proposer


@pytest.fixture(scope="module")
def yolos(tmp_path_factory):
    from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessorPil

    folder = tmp_path_factory.mktemp("yolos") / "tiny-yolos"
    torch.manual_seed(0)
    config = YolosConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=[32, 48],
        patch_size=8, num_detection_tokens=7, id2label={0: "dog", 1: "ball"},
    )  # fmt: skip
    YolosForObjectDetection(config).save_pretrained(folder)
    YolosImageProcessorPil(size={"height": 32, "width": 48}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def detr(tmp_path_factory):
    from transformers import DetrConfig, DetrForObjectDetection, DetrImageProcessorPil, ResNetConfig

    folder = tmp_path_factory.mktemp("detr") / "tiny-detr"
    torch.manual_seed(0)
    backbone = ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, d_model=16,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
        decoder_ffn_dim=16, num_queries=5, id2label={0: "dog", 1: "ball"},
    )  # fmt: skip
    DetrForObjectDetection(config).save_pretrained(folder)
    DetrImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 64}).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("kind", "count"), [("yolos", 7), ("detr", 5)])
def test_a_detector_gives_all_queries_ranked_with_their_class(kind, count, request):
    folder = request.getfixturevalue(kind)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3)).astype(np.uint8))
    found = load_proposer(str(folder), 200)(image)
    assert len(found.boxes) == len(found.scores) == len(found.labels) == count
    assert (np.diff(found.scores) <= 0).all()
    assert set(found.labels) <= {"dog", "ball"}
    assert len(Detector.load(str(folder), 3)(image).boxes) == 3


def test_boxes_equal_those_of_the_network_in_pixels_of_the_image(yolos):
    from transformers import AutoImageProcessor, AutoModelForObjectDetection

    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 96, 3)).astype(np.uint8))
    model, processor = AutoModelForObjectDetection.from_pretrained(yolos), AutoImageProcessor.from_pretrained(yolos)
    with torch.no_grad():
        output = model(**processor(images=image, return_tensors="pt"))
    probability = output.logits[0].softmax(-1)[:, :-1].max(-1).values
    best = int(probability.argmax())
    x, y, w, h = output.pred_boxes[0, best].tolist()
    expected = [(x - w / 2) * 96, (y - h / 2) * 64, (x + w / 2) * 96, (y + h / 2) * 64]
    found = Detector.load(str(yolos))(image)
    assert found.boxes[0].tolist() == pytest.approx(expected, rel=1e-4)
    assert found.scores[0] == pytest.approx(float(probability[best]), rel=1e-4)


def test_settings_depend_on_the_weights_and_not_on_the_folder(yolos, detr):
    assert Detector.load(str(yolos)).settings == Detector.load(str(yolos)).settings
    assert Detector.load(str(yolos)).settings != Detector.load(str(detr)).settings


def test_a_folder_without_a_detector_is_refused(tmp_path):
    with pytest.raises(UserError, match="could not be loaded"):
        load_proposer(str(tmp_path), 10)


def test_decoding_follows_the_definition_of_yolox():
    """Maps of 8x12, 4x6 and 2x3 cells for 64 x 96 pixels, one prediction for each cell."""
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


def test_the_output_of_another_detector_is_refused():
    with pytest.raises(UserError, match="100 predictions for 64 x 96 pixels, which is no YOLOX"):
        decode_predictions(np.zeros((100, 85), np.float32), (64, 96))


def test_the_letterbox_keeps_the_aspect_ratio_and_pads_with_grey():
    image = Image.new("RGB", (40, 20), (10, 20, 30))
    pixels, scale = letterbox(image, (64, 80))
    assert scale == 2
    assert pixels.shape == (1, 3, 64, 80)
    assert pixels[0, :, 0, 0].tolist() == [30, 20, 10]  # blue, green, red
    assert (pixels[0, :, 40:] == 114).all()
    assert (pixels[0, :, :40] != 114).all()


def test_eighty_classes_have_coco_names_and_others_have_numbers():
    assert len(set(COCO_CLASSES)) == 80
    assert class_names(80)[0] == "person"
    assert list(class_names(2)) == ["class 0", "class 1"]


def test_files_that_are_not_networks_are_refused(tmp_path):
    with pytest.raises(UserError, match="there is no detector"):
        YoloX.load(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("not a network")
    with pytest.raises(UserError, match=r"text\.onnx is not a network that onnxruntime opens"):
        YoloX.load(tmp_path / "text.onnx")
