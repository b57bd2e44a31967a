from __future__ import annotations

import unicodedata

import pytest
import torch

from calligram.features.texts.text_encoder import EncoderInput, TextEncoder
from calligram.features.texts.text_vectors import TextVectorInput, TextVectorSettings
from calligram.features.texts.vocabulary import (
    END,
    PAD,
    START,
    UNKNOWN,
    Vocabulary,
    count_truncated_words,
    token_word_indices,
)
from calligram.features.texts.wordpieces import WordPieces
from calligram.text import tokenise, whitespace_word_spans, word_spans


def test_words_are_lower_case_without_punctuation():
    assert tokenise("Two  dogs, run-ning!\n(don’t) Ünïcode x_y") == [
        "two", "dogs", "run", "ning", "don't", "ünïcode", "x", "y",
    ]  # fmt: skip


def test_combining_accents_belong_to_their_letters():
    apart = unicodedata.normalize("NFD", "L'été, un café")
    assert tokenise(apart) == tokenise("L'été, un café") == ["l'été", "un", "café"]
    assert [apart[begin:end] for begin, end in word_spans(apart)] == [
        unicodedata.normalize("NFD", word) for word in ("L'été", "un", "café")
    ]


def test_scripts_without_spaces_are_split_into_characters():
    assert tokenise("白い犬 dog") == ["白", "い", "犬", "dog"]


def test_rare_words_are_unknown_and_the_order_is_deterministic():
    texts = ["a b b", "a c b", "a"]
    vocabulary = Vocabulary.build(texts, min_count=2)
    assert vocabulary.words[4:] == ("a", "b")
    assert vocabulary.encode("b c a") == [START, 5, UNKNOWN, 4, END]
    assert Vocabulary.build(reversed(texts), min_count=2) == vocabulary


def test_texts_are_padded_masked_and_truncated():
    vocabulary = Vocabulary.build(["one two three"], min_count=1, max_words=2)
    words, mask = vocabulary.texts(["one", "one two three", ""])
    assert words.shape == (3, 4)
    assert mask.sum(1).tolist() == [3, 4, 2]
    assert (words[~mask] == PAD).all()
    assert words[1, 3] == END
    assert torch.equal(words[2, :2], torch.tensor([START, END]))


SENTENCE = "A dog's red-haired İstanbul, ’tis “snow”…"


def test_word_spans_are_those_of_the_encoded_words():
    spans = word_spans(SENTENCE)
    # The dotted letter becomes two characters in lower case: a letter and its combining accent.
    spelt = ["A", "dog's", "red", "haired", "İstanbul", "tis", "snow"]
    assert [SENTENCE[start:end] for start, end in spans] == spelt
    assert len(spans) == len(tokenise(SENTENCE))
    assert token_word_indices(spans, whitespace_word_spans(SENTENCE)) == [0, 1, 2, 2, 3, 4, 5]


def test_a_vocabulary_adds_start_and_end_tokens_and_truncates_long_texts():
    words = Vocabulary.build(["a red disc"], min_count=1, max_words=3)
    parts = words.token_spans("a red, very round disc")
    assert parts == [None, (0, 1), (2, 5), (7, 11), None]
    assert len(parts) == len(words.encode("a red, very round disc"))
    assert token_word_indices(parts, whitespace_word_spans("a red, very round disc")) == [None, 0, 1, 2, None]


def test_truncated_words_are_counted(tiny_bert):
    words = Vocabulary.build(["a red disc"], min_count=1, max_words=3)
    assert count_truncated_words(words, "a red, very round disc!") == 2
    assert count_truncated_words(words, "a red disc ...") == count_truncated_words(words, "") == 0
    pieces = WordPieces.load_pretrained(str(tiny_bert), 20)
    assert count_truncated_words(pieces, "a " * 40) == 22  # without the start and end tokens
    assert count_truncated_words(EncoderInput(TextEncoder.load(str(tiny_bert)), pieces, "bert"), "a snow") == 0


@pytest.mark.parametrize("sentence", ["a reddish disc, the snow!", "snow", "", "a " * 40])
def test_word_pieces_lie_in_their_words_frozen_or_not(tiny_bert, sentence):
    pieces = WordPieces.load_pretrained(str(tiny_bert), 20)
    parts = pieces.token_spans(sentence)
    assert len(parts) == len(pieces.encode([sentence])[0])
    assert parts[0] is None
    assert parts[-1] is None
    assert EncoderInput(TextEncoder.load(str(tiny_bert)), pieces, "bert").token_spans(sentence) == parts
    spelt = pieces.tokenizer.convert_ids_to_tokens(pieces.encode([sentence])[0])
    for piece, span in zip(spelt[1:-1], parts[1:-1], strict=True):
        assert piece in ("[UNK]", sentence[span[0] : span[1]], f"##{sentence[span[0] : span[1]]}")


def test_word_pieces_belong_to_their_word_and_punctuation_to_none(tiny_bert):
    sentence = "reddish disc, snow!"
    pieces = WordPieces.load_pretrained(str(tiny_bert), 20)
    spelt = pieces.tokenizer.convert_ids_to_tokens(pieces.encode([sentence])[0])
    found = token_word_indices(pieces.token_spans(sentence), whitespace_word_spans(sentence))
    assert spelt[1].startswith("red")
    assert found[0] is found[-1] is None
    assert [number for number in found if number is not None] == sorted(n for n in found if n is not None)
    assert found.count(0) > 1
    assert {0, 1, 2} <= set(found)
    assert [found[place] for place, piece in enumerate(spelt) if piece in (",", "!", "[UNK]")] == [None, None]


def test_token_word_indices_equal_those_assigned_by_hand():
    """Two words, and three tokens: one starts with the space before its word, one covers both, one lies between."""
    assert token_word_indices([(0, 3), (3, 6), (2, 6), (3, 4), None], [(0, 3), (4, 6)]) == [0, 1, 1, None, None]


def test_text_vectors_have_no_token_spans():
    assert TextVectorInput.fit(["a red disc"], None, TextVectorSettings(kind="tfidf")).token_spans("a disc") is None
