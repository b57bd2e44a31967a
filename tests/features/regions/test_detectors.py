"""Detectors of transformers, as tiny random ones saved to disk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from calligram.errors import UserError
from calligram.features.regions.detectors import Detector
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
def test_a_detector_gives_every_query_ranked_with_its_class(kind, count, request):
    folder = request.getfixturevalue(kind)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3)).astype(np.uint8))
    found = load_proposer(str(folder), 200)(image)
    assert len(found.boxes) == len(found.scores) == len(found.labels) == count
    assert (np.diff(found.scores) <= 0).all()
    assert set(found.labels) <= {"dog", "ball"}
    assert len(Detector.load(str(folder), 3)(image).boxes) == 3


def test_boxes_are_those_of_the_network_in_pixels_of_the_picture(yolos):
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


def test_settings_know_the_weights_and_not_the_folder(yolos, detr):
    assert Detector.load(str(yolos)).settings == Detector.load(str(yolos)).settings
    assert Detector.load(str(yolos)).settings != Detector.load(str(detr)).settings


def test_a_folder_without_a_detector_is_refused(tmp_path):
    with pytest.raises(UserError, match="could not be loaded"):
        load_proposer(str(tmp_path), 10)
