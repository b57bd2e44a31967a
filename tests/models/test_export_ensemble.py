"""Export to ONNX of ensembles, and of matchers whose settings make the score a cosine."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from calligram.errors import UserError
from calligram.features.images.backbones import Backbone, BackboneInput
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models import catalog, export
from calligram.models.ensemble import Ensemble, EnsembleSettings
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import Matcher
from calligram.models.mmca import MMCA, MMCASettings
from calligram.models.vse import VSE, VSESettings
from calligram.vectors import unit_length

TEXTS = ["a red disc", "the round thing is blue", "snow"]
WORDS = Vocabulary.build(TEXTS, min_count=1)


def mmca(alpha: float) -> Matcher:
    text = TextArchitecture(vocabulary=len(WORDS), word_dim=6, hidden=10)
    return MMCA(MMCASettings(ImageArchitecture(feature_dim=16), text, 12, alpha=alpha, filters=4, heads=2))


def together(alpha: float) -> Ensemble:
    vse = VSE(
        VSESettings(
            ImageArchitecture(feature_dim=16),
            TextArchitecture(vocabulary=len(WORDS), word_dim=6, hidden=10, pooling="last"),
            8,
        )
    )
    members = [mmca(alpha), vse]
    return Ensemble(EnsembleSettings(tuple(json.dumps(catalog.describe(member)) for member in members))).eval()


def cells() -> Inputs:
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    backbone = Backbone(ViTModel(ViTConfig(**sizes, image_size=16, patch_size=8)))
    return Inputs(BackboneInput(backbone, PixelInput(16), "x", "grid"), WORDS)


def test_an_ensemble_of_cosine_members_is_exported(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    matcher, inputs = together(alpha=0.0), cells()
    about = export.export_onnx(matcher, inputs, tmp_path / "out")
    assert about["image"]["output"]["vectors"]["shape"] == ["batch", 20]
    pictures = [Image.fromarray(np.full((20, 30, 3), shade, dtype=np.uint8)) for shade in (0, 100, 255)]
    words, mask = WORDS.texts(TEXTS)
    given = {
        "image": {"pixels": PixelInput(16).images(pictures).numpy()},
        "text": {"words": words.numpy(), "mask": mask.numpy()},
    }
    one, two = (
        torch.from_numpy(onnxruntime.InferenceSession(tmp_path / "out" / f"{side}.onnx").run(None, given[side])[0])
        for side in given
    )
    with torch.no_grad():
        images = matcher.encode_images(inputs.images.finish(inputs.images.images(pictures)))
        texts = matcher.encode_texts(words, mask)
        torch.testing.assert_close(one, unit_length(images.vectors), rtol=0, atol=1e-4)
        torch.testing.assert_close(two, unit_length(texts.vectors), rtol=0, atol=1e-4)
        torch.testing.assert_close(one @ two.T, matcher.score(images, texts), rtol=0, atol=2e-4)


def test_an_ensemble_with_a_reranking_member_is_refused(tmp_path):
    with pytest.raises(UserError, match="this one reranks"):
        export.export_onnx(together(alpha=0.2), cells(), tmp_path / "out")
