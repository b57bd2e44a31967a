from __future__ import annotations

import pytest

from calligram.errors import UserError
from calligram.features.texts.chunker import Chunker, PhraseSpan, annotated_captions

NOUNS = ("dog", "man", "boat", "girl", "horse", "ball", "hat", "tree")
TEXTS = [
    f"{one} {a} {verb} {two} {colour} {b} ."
    for one in ("a", "the")
    for a in NOUNS
    for verb in ("chases", "is near", "looks at")
    for two in ("a", "the")
    for colour in ("red", "small")
    for b in NOUNS[::3]
]


def spans_of(text):
    """Return the spans of the first two words, and of the last three words before the full stop."""
    words = text.split()
    first, last = " ".join(words[:2]), " ".join(words[-4:-1])
    return [PhraseSpan(0, len(first)), PhraseSpan(text.rindex(last), text.rindex(last) + len(last))]


@pytest.fixture(scope="module")
def chunker():
    return Chunker.train([(text, spans_of(text)) for text in TEXTS], epochs=3)


def test_phrases_of_new_texts_are_found(chunker):
    text = "The horse is near a small ball ."
    assert [text[s.start : s.end] for s in chunker.spans(text)] == ["The horse", "a small ball"]
    assert chunker.evaluate([(text, spans_of(text))]) == (100, 100, 100)


def test_new_words_are_tagged_by_their_neighbours(chunker):
    text = "a zebra chases the red kite ."
    assert [text[s.start : s.end] for s in chunker.spans(text)] == ["a zebra", "the red kite"]


def test_an_empty_text_has_no_phrases(chunker):
    assert chunker.spans("") == []
    assert chunker.spans("  \n") == []


def test_scores_count_whole_spans(chunker):
    text = "the dog chases a red hat ."
    wrong = [PhraseSpan(0, 7), PhraseSpan(15, 20), PhraseSpan(21, 24)]
    found = chunker.evaluate([(text, wrong)])
    assert found.precision == pytest.approx(50)
    assert found.recall == pytest.approx(100 / 3)
    assert found.f1 == pytest.approx(40)


def test_reading_and_training_again_give_the_same_chunker(chunker, tmp_path):
    chunker.save(tmp_path)
    assert Chunker.read(tmp_path) == chunker
    assert Chunker.train([(text, spans_of(text)) for text in TEXTS], epochs=3) == chunker


def test_a_damaged_file_and_missing_phrases_are_reported(tmp_path):
    (tmp_path / "chunker.json").write_text("{")
    with pytest.raises(UserError, match="does not hold a noun-phrase chunker"):
        Chunker.read(tmp_path)
    with pytest.raises(UserError, match="no annotated phrases to train"):
        Chunker.train([("nothing here", [])])


def test_captions_of_a_collection_have_their_annotated_spans(tiny):
    found = annotated_captions(tiny, "train")
    assert len(found) == 6
    assert all(text[s.start : s.end].endswith("disc") for text, (s,) in found)
    assert len(annotated_captions(tiny, "train", 2)) == 2
