from __future__ import annotations

from calligram.data.readers.entities_annotations import align_spans, pair_sentences


def said(caption: str, sentence: str, *phrases: str) -> list[str | None]:
    spans = [(sentence.index(p), sentence.index(p) + len(p)) for p in phrases]
    return [None if s is None else caption[s[0] : s[1]] for s in align_spans(caption, sentence, spans)]


def test_equal_sentences_keep_their_places() -> None:
    assert said("A dog runs .", "A dog runs .", "A dog") == ["A dog"]


def test_spacing_and_case_do_not_matter() -> None:
    assert said("a Sheep dog runs", "A sheepdog runs.", "A sheepdog") == ["a Sheep dog"]


def test_a_word_changed_stands_for_the_word_in_its_place() -> None:
    assert said("A blonde girl in grey", "A blond girl in gray", "A blond girl", "gray") == ["A blonde girl", "grey"]


def test_one_word_for_several_is_found() -> None:
    assert said("They play offstage now", "They play off the stage now", "the stage") == ["offstage"]


def test_a_phrase_that_is_not_there_is_not_found() -> None:
    assert said("A man runs in the park", "A man runs in the park with his dog", "his dog") == [None]


def test_nothing_is_looked_for_in_another_sentence_altogether() -> None:
    assert said("A", "A black dog on a slope", "A black dog") == [None]


def test_sentences_are_paired_by_what_they_say_and_not_by_order() -> None:
    captions = ["A blonde girl sits .", "Two dogs run .", "A"]
    sentences = ["Two dogs run.", "Something else altogether here", "A blond girl sits ."]
    assert pair_sentences(captions, sentences) == [2, 0, 1]


def test_captions_beyond_the_sentences_have_none() -> None:
    assert pair_sentences(["one", "two"], ["two"]) == [None, 0]
