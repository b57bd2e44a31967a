"""ONNX files in eight bits: smaller, and the recall that they lose on scenes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import ViTConfig, ViTModel

from calligram.errors import UserError
from calligram.evaluation.retrieval import measure_retrieval
from calligram.features.images.backbones import Backbone, BackboneInput
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models import export
from calligram.models.export import export_onnx
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import Matcher
from calligram.models.pretrained import load_dual_encoder
from calligram.models.vse import VSE, VSESettings
from calligram.recipes.parts.run import train_preset
from calligram.scenes.generate import generate_scenes
from calligram.training.runs import Run

SETTINGS = ["epochs=8", "batch=32", "dim=64", "image.size=32", "image.channels=16,32", "text.hidden=64", "lr=0.003"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A matcher that has learnt something of scenes, its inputs, and their test split."""
    folder = tmp_path_factory.mktemp("int8")
    scenes = generate_scenes(folder / "scenes", images=400, size=32, seed=0)
    train_preset("vse", scenes, folder / "run", *SETTINGS)
    return *Run.open(folder / "run").load(), scenes


@pytest.fixture
def traced(trained, monkeypatch):
    """Traces each graph of the trained matcher once: that takes seconds, and these tests are about what follows."""
    kept, trace = trained[2].folder.parent, export._export_graph

    def copied(graph, file) -> None:
        if not (kept / file.name).exists():
            trace(graph, kept / file.name)
        shutil.copy(kept / file.name, file)

    monkeypatch.setattr(export, "_export_graph", copied)


def vectors(folder, name: str, *arrays: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(folder / name, providers=["CPUExecutionProvider"])
    given = {entry.name: array for entry, array in zip(session.get_inputs(), arrays, strict=True)}
    return session.run(None, given)[0]


@pytest.mark.usefixtures("traced")
def test_eight_bits_lose_little_recall_and_most_of_the_size(trained, tmp_path):
    matcher, inputs, scenes = trained
    pairing = scenes.sentences("test")
    rows = [scenes.pictures.open(int(row)) for row in pairing.visuals.rows]
    pixels = inputs.images.images(rows).numpy()
    words, mask = (tensor.numpy() for tensor in inputs.texts.texts(list(pairing.texts.strings)))
    sums, sizes = {}, {}
    for int8 in (False, True):
        folder = tmp_path / str(int8)
        about = export_onnx(matcher, inputs, folder, int8=int8)
        assert about == json.loads((folder / "README.json").read_text())
        assert about["weights"] == ("int8" if int8 else "float32")
        scores = vectors(folder, "image.onnx", pixels) @ vectors(folder, "text.onnx", words, mask).T
        sums[int8] = measure_retrieval(scores, pairing.matches).rsum
        sizes[int8] = (folder / "image.onnx").stat().st_size
    print(f"rsum {sums[False]:.1f} in float32, {sums[True]:.1f} in int8")
    print(f"image.onnx {sizes[False]:,} and {sizes[True]:,} bytes")
    assert sums[False] > 100, "the matcher has learnt something"
    assert abs(sums[True] - sums[False]) < 0.05 * sums[False]
    assert sizes[True] < 0.6 * sizes[False]


def flipped() -> tuple[Matcher, Inputs]:
    """A matcher with a backbone and two views of each image, whose vectors are averaged."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    backbone = Backbone(ViTModel(ViTConfig(**sizes, image_size=16, patch_size=8)))
    words = Vocabulary.build(["a red disc", "snow"], min_count=1)
    texts = TextArchitecture(vocabulary=len(words), word_dim=16, hidden=16)
    matcher = VSE(VSESettings(ImageArchitecture(feature_dim=16), texts, 16))
    return matcher, Inputs(BackboneInput(backbone, PixelInput(16, views="flip"), "x", "vector"), words)


def test_an_image_with_its_mirror_image_in_eight_bits(tmp_path):
    torch.manual_seed(0)
    matcher, inputs = flipped()
    graph = export.ImageGraph(matcher.eval(), inputs.images).eval()
    about = export._export_checked(graph, tmp_path / "image.onnx", int8=True)
    assert about["smallest_cosine"] > 0.95


def test_a_dual_encoder_of_transformers_in_eight_bits(tiny_clip, tmp_path):
    matcher, inputs, _ = load_dual_encoder(str(tiny_clip))
    about = export_onnx(matcher, inputs, tmp_path / "clip", int8=True)
    assert min(about[side]["smallest_cosine"] for side in ("image", "text")) > 0.95


@pytest.mark.usefixtures("traced")
def test_files_that_are_too_different_are_not_written(trained, tmp_path, monkeypatch):
    matcher, inputs, _ = trained
    monkeypatch.setattr(export, "MIN_INT8_COSINE", 1.1)
    with pytest.raises(UserError, match=r"a cosine of .* nothing was written, leave out --int8"):
        export_onnx(matcher, inputs, tmp_path / "out", int8=True)
    assert list(tmp_path.iterdir()) == []


def test_int8_is_an_option_of_onnx(calligram, tmp_path):
    assert "--int8 is for ONNX files; add --onnx FOLDER" in calligram("export", "run", "--out", "x", "--int8").stderr
