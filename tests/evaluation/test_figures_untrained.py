from __future__ import annotations

import numpy as np
import pytest
import torch

from calligram.evaluation.figures import untrained_features
from calligram.features.images.backbones import Backbone, BackboneInput, pixel_input
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    import transformers

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("backbone")
    transformers.MobileNetV2Model(transformers.MobileNetV2Config(depth_multiplier=0.2, image_size=32)).save_pretrained(
        folder
    )
    return str(folder)


@pytest.mark.parametrize("trained", [False, True])
def test_untrained_features_are_those_of_the_backbone_before_training(tiny, backbone, trained):
    visuals = tiny.sentences("test").visuals
    frozen = BackboneInput(Backbone.load(backbone), pixel_input(backbone), "b", batch=4)
    inputs = Inputs(PixelInput(32) if trained else frozen, Vocabulary.build(["a"], 1))
    found = untrained_features({"image": {"backbone": backbone}}, inputs, visuals)
    expected = frozen.images([visuals.open(i) for i in range(6)]).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_there_are_no_untrained_features_without_the_folder_of_the_backbone(tiny, backbone):
    visuals, inputs = tiny.sentences("test").visuals, Inputs(PixelInput(32), Vocabulary.build(["a"], 1))
    assert untrained_features({}, inputs, visuals) is None
    assert untrained_features({"image": {"backbone": ""}}, inputs, visuals) is None
    assert untrained_features({"image": {"backbone": f"{backbone}/gone"}}, inputs, visuals) is None
