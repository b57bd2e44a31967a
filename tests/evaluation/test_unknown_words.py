from __future__ import annotations

import pytest

from calligram.evaluation.word_matching import UnknownWords
from calligram.features.texts.text_vectors import TextVectorInput, TextVectorSettings
from calligram.features.texts.vocabulary import Vocabulary
from calligram.features.texts.wordpieces import WordPieces

TEXTS = ["a red dog runs", "the dog plays with a well known ball"]


@pytest.mark.parametrize(
    "words", [Vocabulary.build(TEXTS, 1), TextVectorInput.fit(TEXTS, None, TextVectorSettings(kind="tfidf"))]
)
def test_unknown_words_are_listed_in_order(words):
    unknown = UnknownWords(words)
    assert unknown("A striped zebra and a red DOG") == ["striped", "zebra", "and"]
    assert unknown.of_all(["a zebra", "the dog", "a striped zebra"]) == ["zebra", "striped"]
    assert unknown.lost("a striped zebra")
    assert unknown.lost("the")
    assert unknown.lost("?!")
    assert not unknown.lost("a striped dog")


def test_a_word_is_known_to_text_vectors_if_one_of_its_parts_is():
    vectors = TextVectorInput.fit(TEXTS, None, TextVectorSettings(kind="tfidf"))
    assert UnknownWords(vectors)("the dog's zebra") == ["zebra"]
    assert UnknownWords(Vocabulary.build(TEXTS, 1))("the dog's zebra") == ["dog's", "zebra"]


def test_word_pieces_know_every_word():
    unknown = UnknownWords(WordPieces.train(TEXTS, min_count=1, max_pieces=12))
    assert unknown("a striped zebra") == []
    assert not unknown.lost("zebra")
