"""What a word is for each purpose: vocabularies and libraries on disk depend on these definitions."""

from __future__ import annotations

import pytest

from calligram.text import (
    HYPHENATED_WORD,
    HYPHENATED_WORD_OR_MARK,
    STOP_WORDS,
    composed,
    indexed_words,
    keywords,
    split_word,
    tokenise,
    whitespace_word_spans,
    without_stop_words,
)

SENTENCE = "The dog’s T-shirt, IMG_12: 犬 cafe\u0301!"


@pytest.mark.parametrize(
    "words, expected",
    [
        (tokenise, ["the", "dog's", "t", "shirt", "img", "12", "犬", "café"]),
        (HYPHENATED_WORD.findall, ["The", "dog’s", "T-shirt", "IMG_12", "犬", "cafe"]),
        (
            HYPHENATED_WORD_OR_MARK.findall,
            ["The", "dog’s", "T-shirt", ",", "IMG_12", ":", "犬", "cafe", "\u0301", "!"],
        ),
        (keywords, ["The", "dog", "s", "T", "shirt", "IMG_12", "犬", "cafe"]),
        (indexed_words, ["The", "dog", "s", "T", "shirt", "IMG", "12", "犬", "cafe"]),
        (
            lambda sentence: [sentence[start:end] for start, end in whitespace_word_spans(sentence)],
            ["The", "dog’s", "T-shirt", "IMG_12", "犬", "cafe\u0301"],
        ),
    ],
)
def test_words_of_one_sentence_for_each_purpose(words, expected):
    assert words(SENTENCE) == expected


def test_a_composed_accent_does_not_end_a_keyword():
    assert keywords(composed("un cafe\u0301 noir")) == ["un", "café", "noir"]


def test_a_word_is_split_at_signs_and_digits():
    assert [split_word(word) for word in ("dog's", "2nd", "t-shirt", "12")] == [
        ["dog", "s"],
        ["nd"],
        ["t", "shirt"],
        [],
    ]


def test_stop_words_are_dropped_in_any_case():
    assert len(STOP_WORDS) == 45
    assert without_stop_words(["The", "dog", "of", "a", "man"]) == ["dog", "man"]
