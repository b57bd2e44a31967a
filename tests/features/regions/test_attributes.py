from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from calligram.features.pseudo.region_words import colour_names, oklab, region_attributes, size_names

SEEN = {
    "black": (12, 10, 14), "white": (245, 246, 240), "grey": (120, 122, 118), "red": (190, 25, 30),
    "green": (40, 140, 50), "blue": (30, 80, 190), "yellow": (240, 215, 50), "orange": (240, 125, 25),
    "purple": (120, 50, 150), "pink": (240, 140, 175), "brown": (105, 65, 40), "tan": (205, 175, 135),
}  # fmt: skip


@pytest.mark.parametrize(("name", "colour"), SEEN.items())
def test_a_disc_has_the_colour_it_was_drawn_in(name, colour):
    image = Image.new("RGB", (300, 200), "grey" if name != "grey" else "red")
    ImageDraw.Draw(image).ellipse((100, 50, 160, 110), fill=colour)
    assert colour_names(image, np.array([[100, 50, 160, 110]], dtype=np.float32)) == (name,)


def test_only_the_middle_counts_and_the_commonest_colour_wins():
    """A red frame around a middle that is mostly blue."""
    image = Image.new("RGB", (100, 100), "red")
    draw = ImageDraw.Draw(image)
    draw.rectangle((25, 25, 74, 74), fill="blue")
    draw.rectangle((25, 25, 40, 74), fill="white")
    assert colour_names(image, np.array([[0, 0, 100, 100]], dtype=np.float32)) == ("blue",)


def test_sizes_go_by_the_share_of_the_picture():
    image = Image.new("RGB", (100, 100))
    boxes = np.array([[0, 0, 10, 10], [0, 0, 40, 40], [0, 0, 80, 80], [0, 0, 100, 100]], dtype=np.float32)
    assert size_names(image, boxes) == ("small", "medium", "large", "large")


def test_an_attribute_is_size_and_colour():
    image = Image.new("RGB", (30, 20), (10, 130, 30))
    assert region_attributes(image, np.array([[0, 0, 30, 20]], dtype=np.float32)) == ("large green",)
    assert region_attributes(image, np.zeros((0, 4), np.float32)) == ()


def test_boxes_at_the_edge_and_of_a_single_pixel_have_a_colour():
    image = Image.new("RGB", (640, 480), "white")
    boxes = np.array([[639, 479, 640, 480], [0, 0, 1, 1], [639, 0, 640, 480]], dtype=np.float32)
    assert colour_names(image, boxes) == ("white",) * 3


def test_oklab_of_known_colours():
    """Ottosson's table: white is (1, 0, 0); red is about (0.628, 0.225, 0.126)."""
    assert oklab(np.array([255.0, 255, 255])) == pytest.approx([1, 0, 0], abs=1e-3)
    assert oklab(np.array([255.0, 0, 0])) == pytest.approx([0.628, 0.225, 0.126], abs=1e-3)
