from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PhraseRecord, PictureFile, RegionRecord
from calligram.data.write_collection import write_draft
from calligram.errors import NotFiniteError, UserError
from calligram.evaluation.localization import evaluate_localization, load_phrases
from calligram.features.images.pixels import PixelInput
from calligram.features.images.region_input import RegionInput
from calligram.features.inputs import Inputs
from calligram.features.regions.extract import ExtractionTask, add_regions
from calligram.features.regions.proposers import Proposals
from calligram.features.regions.region_features import RegionCrops
from calligram.features.texts.text_vectors import TextVectorInput, TextVectorSettings
from calligram.models.matcher import Encoded, Matcher

BOXES = np.array([[0, 0, 100, 100], [0, 0, 50, 100], [50, 0, 100, 100], [0, 0, 10, 10]], dtype=np.float32)


class Four:
    """The same four boxes in every picture."""

    settings = {"method": "four"}  # noqa: RUF012

    def __call__(self, image):
        return Proposals(BOXES)


class ByWidth(Matcher):
    """Scores a box by how near its width is to what the words ask for; the text's first word decides."""

    def __init__(self, asked):
        super().__init__()
        self.asked, self.one = asked, nn.Parameter(torch.zeros(1))

    def encode_images(self, images, mask=None):
        return Encoded(images[:, -5:])

    def encode_texts(self, texts, mask=None):
        return Encoded(texts)

    def score(self, images, texts):
        width = images.vectors[:, 2] - images.vectors[:, 0]
        wanted = torch.tensor([self.asked[int(t.argmax())] for t in texts.vectors])
        return -(width[:, None] - wanted).abs()


@pytest.fixture
def collection(tmp_path):
    """Two pictures. In the first the dogs are two boxes around everything and the ball is out of reach of all."""
    draft = Draft("grounded")
    for name in ("a", "b"):
        Image.new("RGB", (100, 100)).save(tmp_path / f"{name}.png")
        draft.images.append(ImageRecord(name, PictureFile(tmp_path / f"{name}.png"), "test"))
        draft.captions.append(CaptionRecord(f"{name}#0", "dogs ball tree sky", (name,)))
    draft.regions += [
        RegionRecord("a/0", "a", (0, 0, 40, 100)),
        RegionRecord("a/1", "a", (60, 0, 100, 100)),
        RegionRecord("a/2", "a", (90, 90, 95, 95)),
        RegionRecord("b/0", "b", (0, 0, 50, 100)),
    ]
    draft.phrases += [
        PhraseRecord("a#0/0", "a#0", 0, 4, "animals", regions=("a/0", "a/1")),
        PhraseRecord("a#0/1", "a#0", 5, 9, "other", regions=("a/2",)),
        PhraseRecord("b#0/2", "b#0", 10, 14, "other", regions=("b/0",)),
        PhraseRecord("b#0/3", "b#0", 15, 18, "scene"),
    ]
    written = write_draft(draft, tmp_path / "collection")
    return add_regions(written, ExtractionTask(Four(), "four", 4)).collection


@pytest.fixture
def inputs():
    text = TextVectorInput.fit(["dogs", "ball", "tree"], None, TextVectorSettings(kind="tfidf"))
    return Inputs(RegionInput(RegionCrops(PixelInput(16), 2), "four", "grid", 4, geometry=1.0), text)


def widths(inputs, **asked):
    """What the matcher is to look for, by the number of each word."""
    known = inputs.texts.vectorizer.known.number_of
    return ByWidth({known[word]: width for word, width in asked.items()})


def test_recalls_by_hand(collection, inputs):
    """Dogs: the whole is right and first. Tree: two boxes are as wide, so the wrong one counts as first. Ball: none."""
    loaded = load_phrases(inputs, collection, "test")
    found = evaluate_localization(widths(inputs, dogs=1.0, ball=0.1, tree=0.5), inputs, loaded)
    assert (found.phrases, found.images, found.proposals) == (3, 2, 4)
    assert found.r1 == pytest.approx(100 / 3)
    assert found.r5 == found.r10 == found.oracle == pytest.approx(200 / 3)
    assert found.kinds == {"animals": pytest.approx(100), "other": pytest.approx(0)}


def test_boxes_vote_for_the_boxes_that_they_overlap(collection, inputs):
    """Tree: both halves vote for the whole image, which is right, because its IoU with the left half is 0.5."""
    voting = replace(inputs, images=replace(inputs.images, vote=1.0))
    loaded = load_phrases(voting, collection, "test")
    found = evaluate_localization(widths(inputs, dogs=1.0, ball=0.1, tree=0.5), voting, loaded)
    assert found.r1 == pytest.approx(200 / 3)


def test_the_whole_image_and_its_centre_are_baselines(collection, inputs):
    """The whole reaches dogs (all of it) and tree (exactly a half); the middle overlaps a half of the picture less."""
    loaded = load_phrases(inputs, collection, "test")
    found = evaluate_localization(widths(inputs, dogs=1.0, ball=1.0, tree=1.0), inputs, loaded)
    assert found.whole == pytest.approx(200 / 3)
    assert found.central == pytest.approx(100 / 3)
    assert found.as_dict()["whole"] == found.whole


def test_a_constant_scorer_has_recall_zero(collection, inputs):
    class Constant(ByWidth):
        def score(self, images, texts):
            return torch.zeros(len(images.vectors), len(texts.vectors))

    found = evaluate_localization(Constant({}), inputs, load_phrases(inputs, collection, "test"))
    assert found.r1 == 0
    assert found.r5 == found.oracle


def test_scores_that_are_not_finite_are_refused(collection, inputs):
    class Broken(ByWidth):
        def score(self, images, texts):
            return torch.full((len(images.vectors), len(texts.vectors)), torch.nan)

    with pytest.raises(NotFiniteError):
        evaluate_localization(Broken({}), inputs, load_phrases(inputs, collection, "test"))


def test_missing_inputs_are_named_in_the_error(collection, inputs, tiny):
    with pytest.raises(UserError, match=r"6 of 6 images of .* have no proposals 'four'; find them with"):
        load_phrases(inputs, tiny, "test")
    with pytest.raises(UserError, match="takes whole images"):
        load_phrases(Inputs(PixelInput(16), inputs.texts), collection, "test")
