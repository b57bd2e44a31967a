from __future__ import annotations

import pytest
import torch
from PIL import Image, ImageColor, ImageDraw
from torch import nn

from calligram.errors import NotFiniteError, UserError
from calligram.features.images.pixels import PixelInput
from calligram.features.images.region_input import RegionInput
from calligram.features.inputs import Inputs
from calligram.features.regions.region_features import RegionCrops
from calligram.features.texts.chunker import Chunker, PhraseSpan
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models.matcher import Encoded, Matcher
from calligram.search.explain.drawing import COLOURS, LabelledBox, colour_of, draw_boxes
from calligram.search.explain.localize import encode_proposals, localize_phrase, localize_sentence, rank_boxes

COLOUR = {"red": (1.0, -1.0, -1.0), "blue": (-1.0, -1.0, 1.0)}


class ByColour(Matcher):
    """The mean colour of a crop along the colour that the text names."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary, self.one = vocabulary, nn.Parameter(torch.zeros(1))

    def encode_images(self, images, mask=None):
        return Encoded(images.unflatten(1, (3, -1)).mean(2))

    def encode_texts(self, texts, mask=None):
        named = [[self.vocabulary.words[i] for i in row.tolist()] for row in texts]
        return Encoded(torch.tensor([next(v for w, v in COLOUR.items() if w in words) for words in named]))

    def score(self, images, texts):
        return images.vectors @ texts.vectors.T


@pytest.fixture(scope="module")
def picture():
    """Grey, with a red square on the left and a blue one on the right."""
    image = Image.new("RGB", (200, 100), (128, 128, 128))
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, 49, 49), fill=(255, 0, 0))
    pen.rectangle((150, 50, 199, 99), fill=(0, 0, 255))
    return image


@pytest.fixture(scope="module")
def inputs():
    texts = ["the red thing is near the blue thing", "a red thing", "the blue thing"]
    spans = [[PhraseSpan(0, 13), PhraseSpan(22, 36)], [PhraseSpan(0, 11)], [PhraseSpan(0, 14)]]
    chunker = Chunker.train(list(zip(texts, spans, strict=True)) * 10)
    vocabulary = Vocabulary.build(texts, 1, 20)
    crops = RegionCrops(PixelInput(64), 4, margin=0.0)
    return Inputs(RegionInput(crops, "grid", "grid", 200, geometry=0.0), vocabulary, chunker)


def test_the_best_box_is_the_one_the_phrase_speaks_of(picture, inputs):
    matcher = ByColour(inputs.texts)
    for phrase, inside in (("the red thing", (0, 0, 50, 50)), ("a blue thing", (150, 50, 200, 100))):
        best = localize_phrase(matcher, inputs, picture, phrase, k=1)[0]
        assert best.rank == 1
        assert all(inside[i] - 2 <= best.box[i] for i in (0, 1))
        assert all(best.box[i] <= inside[i] + 2 for i in (2, 3))


def test_boxes_come_best_first_and_apart(picture, inputs):
    matcher, looked = ByColour(inputs.texts), encode_proposals(ByColour(inputs.texts), inputs, picture)
    hits = rank_boxes(matcher, inputs, looked, ["red"], k=5)[0]
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    every = rank_boxes(matcher, inputs, looked, ["red"], k=1000, max_overlap=None)[0]
    assert len(every) == len(looked.boxes) == 200
    assert len(rank_boxes(matcher, inputs, looked, ["red"], k=1000)[0]) < 200


def test_every_noun_phrase_of_a_sentence_gets_its_box(picture, inputs):
    matcher = ByColour(inputs.texts)
    sentence = "the red thing is near the blue thing"
    found = localize_sentence(matcher, inputs, encode_proposals(matcher, inputs, picture), sentence)
    assert [located.text for located in found] == ["the red thing", "the blue thing"]
    assert found[0].hits[0].box[0] < 60 < found[1].hits[0].box[0]
    assert sentence[found[1].span.start : found[1].span.end] == "the blue thing"


def test_a_text_without_a_noun_phrase_is_one(picture, inputs):
    class Finds(Chunker):
        def spans(self, text):
            return []

    matcher = ByColour(inputs.texts)
    none = Inputs(inputs.images, inputs.texts, Finds({}))
    found = localize_sentence(matcher, none, encode_proposals(matcher, inputs, picture), "  red ")
    assert [(located.span, located.text) for located in found] == [(PhraseSpan(2, 5), "red")]
    assert found[0].hits[0].box[2] < 60


def test_scores_that_are_not_finite_are_refused(picture, inputs):
    class Broken(ByColour):
        def score(self, images, texts):
            return torch.full((len(images.vectors), len(texts.vectors)), torch.nan)

    with pytest.raises(NotFiniteError, match="not finite"):
        localize_phrase(Broken(inputs.texts), inputs, picture, "red")


def test_what_cannot_be_done_is_said(picture, inputs):
    matcher = ByColour(inputs.texts)
    with pytest.raises(UserError, match="the phrase is empty"):
        localize_phrase(matcher, inputs, picture, "  ")
    with pytest.raises(UserError, match="k must be at least 1"):
        localize_phrase(matcher, inputs, picture, "red", k=0)
    with pytest.raises(UserError, match="train one on regions"):
        localize_phrase(matcher, Inputs(PixelInput(16), inputs.texts), picture, "red")
    looked = encode_proposals(matcher, inputs, picture)
    with pytest.raises(UserError, match="has no noun-phrase chunker"):
        localize_sentence(matcher, Inputs(inputs.images, inputs.texts), looked, "the red thing")


def test_boxes_are_drawn_in_their_colours_above_the_sentence(picture):
    sentence = "the red thing and the blue thing"
    spans = [PhraseSpan(0, 13), PhraseSpan(18, 32)]
    boxes = [LabelledBox((10, 10, 90, 90), colour_of(0)), LabelledBox((120, 20, 180, 60), colour_of(1), "2")]
    drawn = draw_boxes(picture, boxes, sentence, spans)
    assert drawn.width == 640
    assert drawn.height > 320
    first, second = (ImageColor.getrgb(colour_of(number)) for number in (0, 1))
    assert drawn.getpixel((33, 160)) == first
    assert drawn.getpixel((385, 130)) == second
    below = {drawn.getpixel((x, y)) for x in range(640) for y in range(320, drawn.height)}
    assert {first, second, (0, 0, 0)} <= below
    assert colour_of(len(COLOURS)) == COLOURS[0]


def test_a_large_picture_keeps_its_size(picture):
    large = picture.resize((1200, 600))
    assert draw_boxes(large, [LabelledBox((0, 0, 10, 10), "red")]).size == (1200, 600)
