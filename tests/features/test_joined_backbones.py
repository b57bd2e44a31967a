"""Features of several frozen backbones side by side."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from calligram.errors import UserError
from calligram.features.images.backbones import Backbone, BackboneInput, pixel_input
from calligram.features.inputs import Inputs
from calligram.features.joined_input import JoinedBackbones
from calligram.features.texts.vocabulary import Vocabulary
from calligram.recipes.fit import fit
from calligram.recipes.parts.tower_settings import ImageSettings
from calligram.training.runs import load_run


def member(folder: Path) -> BackboneInput:
    return BackboneInput(Backbone.load(str(folder)).eval(), pixel_input(str(folder)), folder.name)


def test_joined_features_are_those_of_each_backbone_scaled(tiny, tiny_clip, tiny_siglip):
    one, two = member(tiny_clip), member(tiny_siglip)
    joined = JoinedBackbones.of([one, two])
    visuals = tiny.sentences("test").visuals
    rows = np.array([2, 0, 5])
    found = joined.load(visuals).take(rows)
    assert found.shape == (3, joined.dim)
    parts = [own.load(visuals).take(rows).float() for own in (one, two)]
    expected = [p / p.norm(dim=1, keepdim=True) * math.sqrt(p.shape[1]) for p in parts]
    torch.testing.assert_close(found, torch.cat(expected, dim=1), rtol=1e-3, atol=1e-3)
    raw = joined.images([visuals.pictures.open(int(visuals.rows[row])) for row in rows])
    torch.testing.assert_close(raw, found, rtol=0.02, atol=0.02)  # the store is in half precision
    with pytest.raises(UserError, match="several backbones give one vector for an image"):
        JoinedBackbones.of([one, BackboneInput(two.backbone, two.pixels, "x", "grid")])


def test_joined_backbones_are_saved_and_read(tmp_path, tiny, tiny_clip, tiny_siglip):
    joined = JoinedBackbones.of([member(tiny_clip), member(tiny_siglip)])
    Inputs(joined, Vocabulary.build(["a disc"], 1, 10)).save(tmp_path)
    again = Inputs.read(tmp_path).images
    picture = [tiny.pictures.open(0)]
    torch.testing.assert_close(again.images(picture), joined.images(picture), rtol=1e-5, atol=1e-5)


def test_a_run_with_several_backbones_learns_and_is_loaded(tmp_path, tiny, tiny_clip, tiny_siglip):
    names = f"{tiny_clip}, {tiny_siglip}"
    image = ImageSettings(backbone=names)
    fit("vse", tiny, out=tmp_path / "run", epochs=2, batch=6, dim=16, device="cpu", image=image)
    matcher, inputs = load_run(tmp_path / "run")
    encoded = matcher.eval().encode_images(inputs.images.finish(inputs.images.images([tiny.pictures.open(0)])))
    assert encoded.vectors.shape == (1, 16)
    assert ImageSettings(backbone=names).backbones == (str(tiny_clip), str(tiny_siglip))
    with pytest.raises(UserError, match="several models, which stay frozen"):
        ImageSettings(backbone=names, train=True)
    with pytest.raises(UserError, match="several backbones give one vector"):
        fit("scan", tiny, out=tmp_path / "scan", epochs=1, device="cpu", image=image)
