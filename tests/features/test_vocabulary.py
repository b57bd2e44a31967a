from __future__ import annotations

import unicodedata

import torch

from calligram.features.texts.vocabulary import END, PAD, START, UNKNOWN, Vocabulary
from calligram.text import tokenise, word_spans


def test_words_are_lower_case_without_punctuation():
    assert tokenise("Two  dogs, run-ning!\n(don’t) Ünïcode x_y") == [
        "two", "dogs", "run", "ning", "don't", "ünïcode", "x", "y",
    ]  # fmt: skip


def test_accents_that_are_characters_of_their_own_belong_to_their_letters():
    apart = unicodedata.normalize("NFD", "L'été, un café")
    assert tokenise(apart) == tokenise("L'été, un café") == ["l'été", "un", "café"]
    assert [apart[begin:end] for begin, end in word_spans(apart)] == [
        unicodedata.normalize("NFD", word) for word in ("L'été", "un", "café")
    ]


def test_scripts_without_spaces_give_characters():
    assert tokenise("白い犬 dog") == ["白", "い", "犬", "dog"]


def test_rare_words_are_unknown_and_the_order_does_not_depend_on_chance():
    texts = ["a b b", "a c b", "a"]
    vocabulary = Vocabulary.build(texts, min_count=2)
    assert vocabulary.words[4:] == ("a", "b")
    assert vocabulary.encode("b c a") == [START, 5, UNKNOWN, 4, END]
    assert Vocabulary.build(reversed(texts), min_count=2) == vocabulary


def test_texts_are_padded_and_masked_and_cut():
    vocabulary = Vocabulary.build(["one two three"], min_count=1, max_words=2)
    words, mask = vocabulary.texts(["one", "one two three", ""])
    assert words.shape == (3, 4)
    assert mask.sum(1).tolist() == [3, 4, 2]
    assert (words[~mask] == PAD).all()
    assert words[1, 3] == END
    assert torch.equal(words[2, :2], torch.tensor([START, END]))
