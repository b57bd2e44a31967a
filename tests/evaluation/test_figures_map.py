from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from calligram.data.matches import Matches
from calligram.evaluation.figures import draw_map, tsne_layout
from calligram.evaluation.recall import EncodedPairing
from calligram.models.matcher import Encoded


def test_near_vectors_are_near_on_the_map():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 8))
    vectors = (centres.repeat(12, axis=0) + 0.05 * rng.normal(size=(36, 8))).astype(np.float32)
    places = tsne_layout(vectors)
    assert places.shape == (36, 2)
    group = np.arange(36) // 12
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1) + 1e9 * np.eye(36)
    assert (group[distances.argmin(1)] == group).all()
    assert np.array_equal(places, tsne_layout(vectors))  # the same again


def test_a_map_shows_images_in_blue_and_a_text_of_each_in_red(tmp_path):
    torch.manual_seed(0)
    matches = Matches([0, 0, 1, 3], [0, 1, 2, 3], (4, 5))  # the third image has no text, the last text no image
    encoded = EncodedPairing(Encoded(torch.randn(4, 6)), Encoded(torch.randn(5, 6)))
    file = draw_map(encoded, matches, tmp_path / "pictures" / "map.png", "a title")
    pixels = np.asarray(Image.open(file).convert("RGB")).astype(int)
    blue = (pixels[..., 2] > pixels[..., 0] + 60).sum()
    red = (pixels[..., 0] > pixels[..., 2] + 60).sum()
    assert blue > 20
    assert red > 20
