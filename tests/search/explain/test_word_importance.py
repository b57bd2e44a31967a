from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from calligram.errors import UserError
from calligram.evaluation.recall import encode_images
from calligram.features.inputs import ImageInput, Inputs
from calligram.features.texts.vocabulary import Vocabulary, whitespace_word_spans
from calligram.models.catalog import load_matcher
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.two_branch import TwoBranchSimilarity, TwoBranchSimilaritySettings
from calligram.search.explain import word_importance
from calligram.search.explain.drawing import draw_word_sheet, draw_words
from calligram.search.explain.word_importance import (
    WordImportance,
    WordImportances,
    explain,
    explain_random_pairs,
    leave_one_out,
)

PICTURE = Image.effect_noise((40, 30), 80).convert("RGB")
SENTENCE = "a red disc, the round thing is blue and  black."


def slowly(matcher, inputs, words: list[str], punctuation: list[str]) -> list[float]:
    """The picture and one sentence at a time, encoded anew for each word."""

    def score(kept: list[str]) -> float:
        pixels = inputs.images.finish(inputs.images.images([PICTURE]))
        text = " ".join(k for k in kept if k)
        return float(matcher.score(matcher.encode_images(pixels), matcher.encode_texts(*inputs.texts.texts([text]))))

    whole = [word + mark for word, mark in zip(words, punctuation, strict=True)]
    weights = []
    for place in range(len(words)):
        without = whole.copy()
        without[place] = punctuation[place]
        weights.append(score(whole) - score(without))
    return weights


@pytest.mark.parametrize("batch", [3, 128])
@torch.no_grad()
def test_the_importance_of_a_word_is_the_decrease_of_the_score_without_it(small_run, batch, monkeypatch):
    monkeypatch.setattr(word_importance, "BATCH_SENTENCES", batch)
    stored = load_matcher(small_run)
    found = explain(stored.matcher, stored.inputs, PICTURE, SENTENCE)
    words = ["a", "red", "disc", "the", "round", "thing", "is", "blue", "and", "black"]
    expected = slowly(stored.matcher.eval(), stored.inputs, words, ["", "", ",", "", "", "", "", "", "", "."])
    assert [word.word for word in found.words] == words
    assert [SENTENCE[word.start : word.end] for word in found.words] == words
    np.testing.assert_allclose([word.weight for word in found.words], expected, atol=1e-5)


def test_a_sentence_that_is_too_long_is_truncated_before_words_are_left_out(small_run):
    stored = load_matcher(small_run)
    longest = stored.inputs.texts.max_words
    found = explain(stored.matcher, stored.inputs, PICTURE, "red " * longest + "blue disc")
    assert [word.word for word in found.words] == ["red"] * longest
    assert found.score == explain(stored.matcher, stored.inputs, PICTURE, "red " * longest).score


@torch.no_grad()
def test_random_pairs_of_a_pairing_are_explained_and_drawn(small_run, tiny):
    stored = load_matcher(small_run)
    pairing = tiny.sentences("test")
    images = encode_images(stored.matcher.eval(), stored.inputs, stored.inputs.images.load(pairing.visuals))
    found = explain_random_pairs(stored.matcher, stored.inputs, images, pairing, count=3)
    assert len({row for row, _ in found}) == 3
    for row, words in found:
        sentence = " ".join(word.word for word in words.words)
        assert sentence in {pairing.texts.strings[text] for text in pairing.matches.texts_of(row)}
        alone = explain(stored.matcher, stored.inputs, pairing.visuals.open(row), sentence)
        np.testing.assert_allclose([w.weight for w in words.words], [w.weight for w in alone.words], atol=1e-5)
    assert len(explain_random_pairs(stored.matcher, stored.inputs, images, pairing, count=50)) == 6
    single = replace(pairing, texts=replace(pairing.texts, strings=("snow",) * len(pairing.texts)))
    assert explain_random_pairs(stored.matcher, stored.inputs, images, single) == []
    explained = [(pairing.visuals.open(row), words) for row, words in found]
    one, two, three = (draw_word_sheet(explained[:count]) for count in (1, 2, 3))
    assert one.height == two.height < three.height
    assert one.width < two.width == three.width


def test_a_very_wide_picture_is_drawn_smaller():
    found = WordImportances(0.5, [WordImportance("red", 0, 3, 0.1), WordImportance("été", 4, 7, 0.2)])
    assert draw_words(Image.new("RGB", (6000, 900)), found).width == 1280
    assert draw_words(Image.new("RGB", (9000, 2)), found).width == 1280


def test_rounding_gives_a_word_no_weight():
    """A text side that passes a word over scores the same but for the last digits."""
    found = leave_one_out("dog the sea", lambda texts: np.array([-5.0, -5.2, -5.0000005, -4.9999995], dtype=np.float32))
    assert [word.weight for word in found.words] == [pytest.approx(0.2), 0, 0]
    assert [word.word for word in found.most_important()] == ["dog"]


@torch.no_grad()
def test_a_matcher_that_scores_pairs_is_explained_by_its_score(small_run):
    inputs = load_matcher(small_run).inputs
    assert isinstance(inputs.texts, Vocabulary)
    torch.manual_seed(0)
    shape = TwoBranchSimilaritySettings(
        ImageArchitecture(feature_dim=3),
        TextArchitecture(hidden=8, vocabulary=len(inputs.texts), word_dim=6),
        12,
        hidden=9,
    )
    matcher = TwoBranchSimilarity(shape).eval()
    assert matcher.scoring.reranks

    class Means(ImageInput):
        """Mean colours."""

        def images(self, images: list[Image.Image]) -> torch.Tensor:
            return torch.tensor(np.stack([np.asarray(image).mean((0, 1)) for image in images]) / 255).float()

        def finish(self, rows: torch.Tensor) -> torch.Tensor:
            return rows

    inputs = Inputs(Means(), inputs.texts)
    words = ["a", "red", "disc"]
    found = explain(matcher, inputs, PICTURE, " ".join(words))
    np.testing.assert_allclose([w.weight for w in found.words], slowly(matcher, inputs, words, [""] * 3), atol=1e-6)


def test_by_hand():
    """A scorer that counts letters: each word weighs as many as it has, and a word against takes two off."""
    found = leave_one_out(
        "dog, not cat", lambda texts: np.array([len(t) - 5 * ("not" in t) for t in texts], dtype=np.float32)
    )
    assert found.score == 7
    assert [(word.word, word.weight) for word in found.words] == [("dog", 4.0 - 1), ("not", -1.0), ("cat", 4.0)]
    assert [word.word for word in found.most_important(1)] == ["cat"]


def test_words_are_what_stands_between_spaces_without_punctuation():
    text = " «Où»  est-ce?  — o'clock, नमस्ते… $5 "
    assert [text[start:end] for start, end in whitespace_word_spans(text)] == ["Où", "est-ce", "o'clock", "नमस्ते", "5"]


@pytest.mark.parametrize("sentence", ["", "  ", "dog", "dog !"])
def test_fewer_than_two_words_cannot_be_weighed(sentence):
    with pytest.raises(UserError, match="at least two words, got"):
        leave_one_out(sentence, lambda texts: np.zeros(len(texts), dtype=np.float32))


@pytest.mark.parametrize("size", [(40, 30), (5, 900), (900, 5)])
def test_words_are_drawn_below_the_picture(size):
    words = [WordImportance(word, 0, 1, weight) for word, weight in (("red", 0.4), ("the", 0.0), ("green", -0.2))]
    drawn = draw_words(Image.new("RGB", size), WordImportances(0.5, words))
    shown = np.asarray(drawn)
    assert drawn.height > max(1, size[1])
    red = (shown[..., 0] > 180) & (shown[..., 1] < 60)
    assert red.any()
    zero = draw_words(Image.new("RGB", size), WordImportances(0.5, [word._replace(weight=0.0) for word in words]))
    assert zero.size == drawn.size
