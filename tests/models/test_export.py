from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from calligram.errors import UserError
from calligram.features.images.backbones import Backbone, BackboneInput
from calligram.features.images.pixels import PixelInput
from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import Inputs
from calligram.features.texts.text_encoder import EncoderInput, TextEncoder
from calligram.features.texts.vocabulary import Vocabulary
from calligram.features.texts.wordpieces import WordPieces
from calligram.models import export
from calligram.models.a3vse import A3VSE, A3VSESettings
from calligram.models.layers.text_cnn import TextCNNSettings
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import EmbeddingMatcher, Matcher
from calligram.models.pretrained import load_pretrained
from calligram.models.vse import VSE, VSESettings
from calligram.vectors import unit_length

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TEXTS = ["a red disc", "the round thing is blue", "snow"]
WORDS = Vocabulary.build(TEXTS, min_count=1)


def recurrent() -> tuple[Matcher, Inputs]:
    settings = VSESettings(
        ImageArchitecture("cnn", channels=(4, 8)),
        TextArchitecture(vocabulary=len(WORDS), word_dim=6, hidden=10, bidirectional=True, pooling="max"),
        12,
    )
    return VSE(settings), Inputs(PixelInput(16, views="flip"), WORDS)


def convolutional() -> tuple[Matcher, Inputs]:
    cnn = TextCNNSettings(len(WORDS), 6, (1, 2), width=2, length=3, shifts=0)
    settings = VSESettings(
        ImageArchitecture("cnn", channels=(4, 8)), TextArchitecture("cnn", cnn=cnn.description), 12, head="paper"
    )
    return VSE(settings), Inputs(PixelInput(16, views="flip"), WORDS)


def attentive() -> tuple[Matcher, Inputs]:
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    backbone = Backbone(ViTModel(ViTConfig(**sizes, image_size=16, patch_size=8)))
    settings = A3VSESettings(
        ImageArchitecture(feature_dim=16),
        TextArchitecture("lstm", vocabulary=len(WORDS), word_dim=6, hidden=10, bidirectional=True),
        12,
        context=8,
    )
    return A3VSE(settings), Inputs(BackboneInput(backbone, PixelInput(16), "x", "grid"), WORDS)


def dual(folder) -> tuple[Matcher, Inputs]:
    pieces = WordPieces.load_pretrained(str(folder))
    return load_pretrained(str(folder), pieces.pad)[0], Inputs(PixelInput(16), pieces)


def frozen(folder) -> tuple[Matcher, Inputs]:
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    backbone = Backbone(ViTModel(ViTConfig(**sizes, image_size=16, patch_size=8)))
    encoder = TextEncoder.load(str(folder)).description
    settings = VSESettings(
        ImageArchitecture(feature_dim=16), TextArchitecture("bert", pooling="mean", encoder=encoder), 12
    )
    inputs = Inputs(BackboneInput(backbone, PixelInput(16), "x", "grid"), WordPieces.load_pretrained(str(folder)))
    return VSE(settings), inputs


def frozen_both(folder) -> tuple[Matcher, Inputs]:
    matcher, inputs = frozen(folder)
    encoder = TextEncoder.load(str(folder)).eval()
    settings = replace(matcher.settings, text=TextArchitecture("states", state_dim=encoder.dim))
    return VSE(settings), Inputs(inputs.images, EncoderInput(encoder, inputs.texts, "x"))


def assert_same(matcher: Matcher, inputs: Inputs, folder) -> None:
    """Check that the exported files give the vectors of the matcher for images and texts."""
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 255, (20, 30, 3), dtype=np.uint8)) for _ in range(3)]
    read = Inputs.read(folder / "inputs")
    words, mask = read.texts.token_input.texts(TEXTS)
    run = {side: onnxruntime.InferenceSession(folder / f"{side}.onnx").run for side in ("image", "text")}
    one = torch.from_numpy(run["image"](None, {"pixels": read.images.pixel_input.images(pictures).numpy()})[0])
    two = torch.from_numpy(run["text"](None, {"words": words.numpy(), "mask": mask.numpy()})[0])
    matcher.eval()
    with torch.no_grad():
        seen = inputs.images.finish(inputs.images.images(pictures))
        torch.testing.assert_close(one, unit_length(matcher.encode_images(seen).vectors), rtol=0, atol=1e-4)
        torch.testing.assert_close(
            two, unit_length(matcher.encode_texts(*inputs.texts.texts(TEXTS)).vectors), rtol=0, atol=2e-3
        )
    torch.testing.assert_close(two.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(one.norm(dim=1), torch.ones(3))


@pytest.mark.parametrize(
    ("model", "made"), [("tiny_clip", dual), ("tiny_siglip", dual), ("tiny_bert", frozen), ("tiny_bert", frozen_both)]
)
def test_onnx_vectors_equal_those_of_the_matcher(model, made, request, tmp_path):
    torch.manual_seed(0)
    matcher, inputs = made(request.getfixturevalue(model))
    about = export.export_onnx(matcher, inputs, tmp_path / "out")
    assert_same(matcher, inputs, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "README.json").read_text()) == about
    assert about["text"]["inputs"]["words"]["shape"] == ["batch", "length"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("made", [convolutional, attentive])
def test_text_cnns_with_all_shifts_and_word_attention_are_exported(made, tmp_path):
    torch.manual_seed(0)
    matcher, inputs = made()
    matcher.eval()
    export.export_onnx(matcher, inputs, tmp_path / "out")
    assert_same(matcher, inputs, tmp_path / "out")


def test_the_verb_exports_a_run(tmp_path, capsys):
    from calligram.cli.library import export as verb
    from calligram.training.runs import Run

    torch.manual_seed(0)
    matcher, inputs = recurrent()
    run = Run.create(tmp_path / "run", {})
    run.describe(matcher, inputs)
    run.save_best(matcher.state_dict())
    verb(tmp_path / "run", tmp_path / "out")
    assert_same(matcher, inputs, tmp_path / "out")
    said = capsys.readouterr().out
    assert "image.onnx: pixels uint8 (batch, 3, 16, 16) to vectors (batch, 12); largest difference" in said
    assert "text.onnx: words int64 (batch, length), mask bool (batch, length) to" in said


def test_a_graph_that_differs_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "MAX_DIFFERENCE", -1.0)
    matcher, inputs = recurrent()
    with pytest.raises(UserError, match=r"the ONNX image encoder differs from the matcher by .* nothing was written"):
        export.export_onnx(matcher, inputs, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_matchers_that_cannot_be_exported_are_refused(tmp_path):
    matcher, inputs = recurrent()
    with pytest.raises(UserError, match="cosine of two vectors can be exported"):
        export.export_onnx(Matcher(), inputs, tmp_path / "out")
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match="exists already; choose another folder"):
        export.export_onnx(matcher, inputs, tmp_path / "there")
    unknown = EmbeddingMatcher()
    unknown.settings = None
    with pytest.raises(UserError, match="shape of the stored features of this matcher is not known"):
        export.export_onnx(unknown, Inputs(StoredInput("x"), WORDS), tmp_path / "out")
