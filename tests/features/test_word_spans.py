from __future__ import annotations

import pytest

from calligram.features.texts.text_encoder import EncoderInput, TextEncoder
from calligram.features.texts.text_vectors import TextVectorInput, TextVectorSettings
from calligram.features.texts.vocabulary import Vocabulary, count_truncated_words, token_spans, token_word_indices
from calligram.features.texts.wordpieces import WordPieces
from calligram.text import tokenise, whitespace_word_spans, word_spans

SENTENCE = "A dog's red-haired İstanbul, ’tis “snow”…"


def test_places_are_those_of_the_words_that_are_encoded():
    places = word_spans(SENTENCE)
    # The dotted letter is two in lower case, of which the second is an accent and belongs to the first.
    spelt = ["A", "dog's", "red", "haired", "İstanbul", "tis", "snow"]
    assert [SENTENCE[start:end] for start, end in places] == spelt
    assert len(places) == len(tokenise(SENTENCE))
    assert token_word_indices(places, whitespace_word_spans(SENTENCE)) == [0, 1, 2, 2, 3, 4, 5]


def test_a_vocabulary_has_a_part_for_each_end_and_cuts_long_texts():
    words = Vocabulary.build(["a red disc"], min_count=1, max_words=3)
    parts = token_spans(words, "a red, very round disc")
    assert parts == [None, (0, 1), (2, 5), (7, 11), None]
    assert len(parts) == len(words.encode("a red, very round disc"))
    assert token_word_indices(parts, whitespace_word_spans("a red, very round disc")) == [None, 0, 1, 2, None]


def test_words_beyond_what_is_read_are_counted(tiny_bert):
    words = Vocabulary.build(["a red disc"], min_count=1, max_words=3)
    assert count_truncated_words(words, "a red, very round disc!") == 2
    assert count_truncated_words(words, "a red disc ...") == count_truncated_words(words, "") == 0
    pieces = WordPieces.load_pretrained(str(tiny_bert), 20)
    assert count_truncated_words(pieces, "a " * 40) == 22  # beside the marks of both ends
    assert count_truncated_words(EncoderInput(TextEncoder.load(str(tiny_bert)), pieces, "bert"), "a snow") == 0


@pytest.mark.parametrize("sentence", ["a reddish disc, the snow!", "snow", "", "a " * 40])
def test_pieces_lie_in_their_words_frozen_or_not(tiny_bert, sentence):
    pieces = WordPieces.load_pretrained(str(tiny_bert), 20)
    parts = token_spans(pieces, sentence)
    assert len(parts) == len(pieces.encode([sentence])[0])
    assert parts[0] is None
    assert parts[-1] is None
    assert token_spans(EncoderInput(TextEncoder.load(str(tiny_bert)), pieces, "bert"), sentence) == parts
    spelt = pieces.tokenizer.convert_ids_to_tokens(pieces.encode([sentence])[0])
    for piece, place in zip(spelt[1:-1], parts[1:-1], strict=True):
        assert piece in ("[UNK]", sentence[place[0] : place[1]], f"##{sentence[place[0] : place[1]]}")


def test_pieces_of_a_word_are_its_own_and_punctuation_nobodys(tiny_bert):
    sentence = "reddish disc, snow!"
    pieces = WordPieces.load_pretrained(str(tiny_bert), 20)
    spelt = pieces.tokenizer.convert_ids_to_tokens(pieces.encode([sentence])[0])
    found = token_word_indices(token_spans(pieces, sentence), whitespace_word_spans(sentence))
    assert spelt[1].startswith("red")
    assert found[0] is found[-1] is None
    assert [number for number in found if number is not None] == sorted(n for n in found if n is not None)
    assert found.count(0) > 1
    assert {0, 1, 2} <= set(found)
    assert [found[place] for place, piece in enumerate(spelt) if piece in (",", "!", "[UNK]")] == [None, None]


def test_by_hand():
    """Two words; a piece that begins with the blank before its word, one over both, one between."""
    assert token_word_indices([(0, 3), (3, 6), (2, 6), (3, 4), None], [(0, 3), (4, 6)]) == [0, 1, 1, None, None]


def test_a_text_of_one_vector_has_no_parts():
    assert token_spans(TextVectorInput.fit(["a red disc"], None, TextVectorSettings(kind="tfidf")), "a disc") is None
