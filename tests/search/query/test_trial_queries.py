from __future__ import annotations

import numpy as np

from calligram.search.query.cutoff import EVERYDAY_PHRASES, MIN_UNSEEN_ITEMS, TRIAL_CAPTIONS, trial_queries
from calligram.text import without_stop_words


def test_a_caption_matches_its_items_and_a_phrase_the_items_with_its_words():
    items = [["A red dog runs."], ["a red dog runs", "Two cats"], [], ["a red doghouse"]]
    trials = trial_queries(items)
    assert "a red dog runs" in trials.texts
    for text, row in zip(trials.texts, trials.matches, strict=True):
        expected = [f" {text} " in " a red dog runs ", f" {text} " in " a red dog runs | two cats "]
        assert row.tolist() == [*expected, False, f" {text} " in " a red doghouse "]


def test_phrases_are_short_and_have_no_stop_word_at_either_end():
    items = [[f"a dog number{n} on the beach of the town"] for n in range(3 * TRIAL_CAPTIONS)]
    trials = trial_queries(items)
    pieces = [text for text in trials.texts if len(text.split()) <= 3]
    assert len(pieces) > 20
    assert not [p for p in pieces if {p.split()[0], p.split()[-1]} & {"a", "on", "the", "of"}]
    assert len(trials.texts) <= 2 * TRIAL_CAPTIONS
    assert all(trials.matches.any(axis=1))


def test_texts_as_short_as_phrases_are_short_and_stop_words_are_removed():
    trials = trial_queries([["a dog on the beach"], ["dog"]])
    assert [text for text, brief in zip(trials.texts, trials.short, strict=True) if not brief] == ["a dog on the beach"]
    assert without_stop_words(["A", "dog", "on", "the", "beach"]) == ["dog", "beach"]


def test_the_same_library_gives_the_same_trials():
    items = [[f"dog {n}", f"cat {n}"] for n in range(20)]
    one, two = trial_queries(items), trial_queries(items)
    assert one.texts == two.texts
    np.testing.assert_array_equal(one.matches, two.matches)


def test_phrases_stand_in_where_there_are_no_captions():
    trials = trial_queries([[], [" ... "]])
    assert trials.texts == list(EVERYDAY_PHRASES)
    assert not trials.matches.any()
    assert len(EVERYDAY_PHRASES) == len(set(EVERYDAY_PHRASES)) > 80
    assert not [p for p in EVERYDAY_PHRASES if "\n" in p or "  " in p]


def test_captions_of_the_training_split_are_used_where_others_are_too_few():
    items = [[f"caption number{n}"] for n in range(3 * MIN_UNSEEN_ITEMS)]
    few = [n >= MIN_UNSEEN_ITEMS - 1 for n in range(len(items))]
    assert len(trial_queries(items, trained=few).texts) > 2 * MIN_UNSEEN_ITEMS
    some = [n >= MIN_UNSEEN_ITEMS for n in range(len(items))]
    trials = trial_queries(items, trained=some)
    whole = [text for text in trials.texts if text.startswith("caption number")]
    assert {int(text.removeprefix("caption number")) for text in whole} == set(range(MIN_UNSEEN_ITEMS))
