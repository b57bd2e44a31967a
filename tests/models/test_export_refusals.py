from __future__ import annotations

import pytest

from calligram.errors import UserError
from calligram.features.images.pixels import PixelInput
from calligram.features.images.region_input import RegionInput
from calligram.features.inputs import Inputs
from calligram.features.regions.region_features import RegionCrops
from calligram.features.texts.text_vectors import TextVectorInput, TextVectorSettings
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models.export import export_onnx
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.two_branch import TwoBranchEmbedding, TwoBranchSettings

TEXTS = ["a red dog", "a blue ball"]


@pytest.mark.parametrize("what", ["image input 'regions'", "text input 'text-vectors'"])
def test_inputs_that_no_network_computes_are_refused(tmp_path, what):
    vectors = TextVectorInput.fit(TEXTS, None, TextVectorSettings(kind="tfidf"))
    regions = RegionInput(RegionCrops(PixelInput(16), 2), "grid", "grid", 4)
    inputs = Inputs(regions, Vocabulary.build(TEXTS, 1)) if "regions" in what else Inputs(PixelInput(16), vectors)
    matcher = TwoBranchEmbedding(
        TwoBranchSettings(
            ImageArchitecture(feature_dim=regions.dim), TextArchitecture("vectors", state_dim=vectors.dim), 4, hidden=8
        )
    )
    with pytest.raises(
        UserError, match=f"{what} of this matcher is not computed by a network.*; export a matcher that is trained on"
    ):
        export_onnx(matcher, inputs, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
