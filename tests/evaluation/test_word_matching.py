from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calligram.data.matches import Matches
from calligram.evaluation.word_matching import retrieval_by_words, word_scores

SENTENCES = st.lists(st.lists(st.sampled_from("abcde"), max_size=4).map(" ".join), min_size=1, max_size=5)


@settings(deadline=None)  # the first call imports scipy
@given(SENTENCES, SENTENCES)
def test_scores_are_weighted_cosines_of_word_sets(said, texts):
    def weight(word):
        return math.log((len(said) + 1) / (sum(word in s.split() for s in said) + 1))

    known = {word for sentence in said for word in sentence.split()}
    found = word_scores(said, texts)
    for row, sentence in enumerate(said):
        for column, text in enumerate(texts):
            one, other = set(sentence.split()), set(text.split()) & known
            lengths = [math.sqrt(sum(weight(w) ** 2 for w in words)) for words in (one, other)]
            shared = sum(weight(w) ** 2 for w in one & other)
            expected = shared / (lengths[0] * lengths[1]) if all(lengths) else 0.0
            assert found[row, column] == pytest.approx(expected, abs=1e-9)


def test_images_are_found_by_rare_words():
    said = ["person dog", "person horse", "person"]
    matches = Matches(np.array([0, 1, 2]), np.array([0, 1, 2]), (3, 3))
    found = retrieval_by_words(said, ["A dog!", "a person on a horse", "nothing"], matches)
    assert found.t2i.r1 == pytest.approx(200 / 3)
