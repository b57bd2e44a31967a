from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from calligram.data.draft import RegionRecord
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.features.pseudo.region_words import (
    PseudoSentences,
    colour_names,
    oklab,
    region_attributes,
    region_sentences,
    size_names,
)

REGIONS = (["dog", "traffic light", "dog", ""], ["small brown", "large red", "small brown", "medium blue"])
SCORES = [0.5, 0.9, 0.4, 0.99]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (PseudoSentences(), "red traffic light brown dog"),
        (PseudoSentences(attributes="none"), "traffic light dog"),
        (PseudoSentences(attributes="all"), "large red traffic light small brown dog"),
        (PseudoSentences(repeats=True), "red traffic light brown dog brown dog"),
        (PseudoSentences(max_regions=1), "red traffic light"),
        (PseudoSentences(min_score=0.6), "red traffic light"),
        (PseudoSentences(min_score=0.95), ""),
    ],
)
def test_sentences_list_regions_by_score(how, sentence):
    assert how.build(*REGIONS, SCORES) == sentence


def test_regions_without_a_score_have_score_one():
    assert PseudoSentences(attributes="none").build(["cat", "dog"], ["", ""], [0.9, float("nan")]) == "dog cat"


@given(
    st.lists(st.tuples(st.sampled_from(["dog", "cat", "red bus", ""]), st.floats(0, 1, width=32)), max_size=12),
    st.integers(1, 5),
    st.floats(0, 1),
    st.booleans(),
)
def test_sentences_equal_those_of_a_plain_loop(regions, most, least, repeats):
    said: list[str] = []
    for label, score in sorted(regions, key=lambda r: -r[1]):
        if label and score >= least and (repeats or label not in said) and len(said) < most:
            said.append(label)
    labels, scores = [label for label, _ in regions], [score for _, score in regions]
    assert PseudoSentences(least, most, repeats, "none").build(labels, [""] * len(labels), scores) == " ".join(said)


@pytest.fixture(scope="module")
def detected(tiny_draft, tmp_path_factory):
    """The tiny collection with boxes of a detector in some images."""
    folder = tmp_path_factory.mktemp("detected")
    (folder / "pictures").mkdir()
    draft = tiny_draft(folder / "pictures")
    for image, label, score in (("train-4", "plate", 0.4), ("train-1", "ball", 0.9), ("train-4", "ball", 0.8)):
        name = f"{image}/{label}"
        draft.regions.append(RegionRecord(name, image, (1, 1, 9, 9), "finder", label, "small red", score))
    draft.regions.append(RegionRecord("nameless", "train-0", (1, 1, 9, 9), "boxes", score=0.5))
    return write_draft(draft, folder / "collection")


def test_each_image_has_the_sentence_of_its_own_regions(detected):
    rows = detected.images_in("train")[[4, 0, 1]]
    assert region_sentences(detected, rows, "finder", PseudoSentences()) == ["red ball red plate", "", "red ball"]


def test_missing_regions_and_regions_without_classes_are_refused(detected):
    rows = detected.images_in("train")
    with pytest.raises(
        UserError,
        match=r"no regions 'yolox' \(it has: boxes, finder, truth\); .*region_source=finder, .*calligram regions",
    ):
        region_sentences(detected, rows, "yolox", PseudoSentences())
    with pytest.raises(UserError, match="the regions 'boxes' have no classes"):
        region_sentences(detected, rows, "boxes", PseudoSentences())


def test_without_a_name_the_only_regions_with_classes_are_used(detected):
    rows = detected.images_in("train")
    assert region_sentences(detected, rows, "", PseudoSentences()) == region_sentences(
        detected, rows, "finder", PseudoSentences()
    )


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (("one", "two"), r"several regions with classes \(one, two\); .* --set pseudo.region_source=one"),
        ((), r"no regions with classes of a detector \(it has: truth\); .*calligram regions .*source=truth"),
    ],
)
def test_without_a_name_several_or_no_sources_are_refused(tiny_draft, tmp_path, sources, message):
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    for source in sources:
        draft.regions.append(RegionRecord(f"{source}/x", "train-0", (1, 1, 9, 9), source, "ball", "", 0.9))
    collection = write_draft(draft, tmp_path / "collection")
    with pytest.raises(UserError, match=message):
        region_sentences(collection, collection.images_in("train"), "", PseudoSentences())


SEEN = {
    "black": (12, 10, 14), "white": (245, 246, 240), "grey": (120, 122, 118), "red": (190, 25, 30),
    "green": (40, 140, 50), "blue": (30, 80, 190), "yellow": (240, 215, 50), "orange": (240, 125, 25),
    "purple": (120, 50, 150), "pink": (240, 140, 175), "brown": (105, 65, 40), "tan": (205, 175, 135),
}  # fmt: skip


@pytest.mark.parametrize(("name", "colour"), SEEN.items())
def test_a_disc_has_the_colour_of_its_drawing(name, colour):
    image = Image.new("RGB", (300, 200), "grey" if name != "grey" else "red")
    ImageDraw.Draw(image).ellipse((100, 50, 160, 110), fill=colour)
    assert colour_names(image, np.array([[100, 50, 160, 110]], dtype=np.float32)) == (name,)


def test_the_colour_is_the_most_frequent_one_of_the_centre():
    """A red frame around a centre that is mostly blue."""
    image = Image.new("RGB", (100, 100), "red")
    draw = ImageDraw.Draw(image)
    draw.rectangle((25, 25, 74, 74), fill="blue")
    draw.rectangle((25, 25, 40, 74), fill="white")
    assert colour_names(image, np.array([[0, 0, 100, 100]], dtype=np.float32)) == ("blue",)


def test_sizes_depend_on_the_share_of_the_image_area():
    image = Image.new("RGB", (100, 100))
    boxes = np.array([[0, 0, 10, 10], [0, 0, 40, 40], [0, 0, 80, 80], [0, 0, 100, 100]], dtype=np.float32)
    assert size_names(image, boxes) == ("small", "medium", "large", "large")


def test_an_attribute_has_a_size_and_a_colour():
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
