from __future__ import annotations

from itertools import combinations

from calligram.data.pictures import font


def test_letters_of_european_languages_are_told_apart():
    drawn = [bytes(font(20).getmask(letter)) for letter in "eéöčşđłñøЖλ"]
    assert all(one != two for one, two in combinations(drawn, 2))
