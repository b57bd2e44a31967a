from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calligram.data.draft import RegionRecord
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.features.pseudo.region_words import PseudoSentences, region_sentences

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
def test_regions_are_said_by_confidence(how, sentence):
    assert how.build(*REGIONS, SCORES) == sentence


def test_regions_without_a_score_are_certain():
    assert PseudoSentences(attributes="none").build(["cat", "dog"], ["", ""], [0.9, float("nan")]) == "dog cat"


@given(
    st.lists(st.tuples(st.sampled_from(["dog", "cat", "red bus", ""]), st.floats(0, 1, width=32)), max_size=12),
    st.integers(1, 5),
    st.floats(0, 1),
    st.booleans(),
)
def test_sentences_agree_with_a_literal_reading(regions, most, least, repeats):
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


def test_regions_that_are_not_there_or_have_no_class_are_refused(detected):
    rows = detected.images_in("train")
    with pytest.raises(
        UserError,
        match=r"no regions 'yolox' \(it has: boxes, finder, truth\); .*region_source=finder, .*calligram regions",
    ):
        region_sentences(detected, rows, "yolox", PseudoSentences())
    with pytest.raises(UserError, match="the regions 'boxes' have no classes"):
        region_sentences(detected, rows, "boxes", PseudoSentences())


def test_without_a_name_the_only_regions_with_classes_speak(detected):
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
def test_without_a_name_several_or_none_are_refused(tiny_draft, tmp_path, sources, message):
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    for source in sources:
        draft.regions.append(RegionRecord(f"{source}/x", "train-0", (1, 1, 9, 9), source, "ball", "", 0.9))
    collection = write_draft(draft, tmp_path / "collection")
    with pytest.raises(UserError, match=message):
        region_sentences(collection, collection.images_in("train"), "", PseudoSentences())
