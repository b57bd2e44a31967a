from __future__ import annotations

import math

import numpy as np

from calligram.cli.screen import print_unknown
from calligram.data.matches import Matches
from calligram.evaluation.word_matching import unknown_failures

KNOWN = {"a", "dog", "cat"}


def strange(text):
    return [word for word in text.split() if word not in KNOWN]


def test_failures_are_counted_by_whether_their_words_are_known():
    # Three images, five texts; the fourth text has two images, the last none.
    matches = Matches(np.array([0, 1, 2, 0, 2]), np.array([0, 1, 2, 3, 3]), (3, 5))
    scores = np.array([[3, 3, 1, 0, 9], [2, 2, 2, 1, 9], [1, 1, 0, 2, 9]], dtype=np.float64)
    texts = ("a dog", "a harp", "a harp amplifier harp", "a lute", "nobody's")
    found = unknown_failures(scores, matches, texts, strange, within=1)
    assert (found.failures, found.failures_unknown, found.found, found.found_unknown) == (2, 2, 2, 1)
    assert found.words == (("harp", 2), ("amplifier", 1))
    assert found.failure_rate == (100 * 2 / 3, 0.0)
    assert found.as_dict()["within"] == 1


def test_rates_without_queries_are_nan(capsys):
    found = unknown_failures(np.ones((2, 1)), Matches(np.array([0]), np.array([0]), (2, 1)), ("a dog",), strange, 10)
    assert math.isnan(found.failure_rate[0])
    assert found.failure_rate[1] == 0.0
    print_unknown(found)
    said = " ".join(capsys.readouterr().out.split())
    assert said.endswith("Of texts with an unknown word there are none, of other texts 0% of 1 fail")
