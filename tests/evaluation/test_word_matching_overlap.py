from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calligram.evaluation.word_matching import word_overlap

SENTENCES = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=5).map(" ".join), max_size=8)


@given(SENTENCES, SENTENCES, st.integers(1, 3))
def test_iou_is_that_of_the_literal_sets(captions, said, least):
    words = []
    for texts in (captions, said):
        together = " ".join(texts).split()
        words.append({word for word in together if together.count(word) >= least})
    found = word_overlap(captions, said, least)
    assert (found.captions, found.pseudo, found.shared) == (len(words[0]), len(words[1]), len(words[0] & words[1]))
    union = words[0] | words[1]
    assert found.iou == pytest.approx(100 * len(words[0] & words[1]) / len(union) if union else 0)


def test_by_hand():
    found = word_overlap(["A dog runs.", "two dogs run"], ["brown Dog", "a person"], 1)
    assert found.as_dict() == {"captions": 6, "said": 4, "shared": 2, "iou": 25.0}
