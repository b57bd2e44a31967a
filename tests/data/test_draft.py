from __future__ import annotations

import pytest

from calligram.data.draft import Problems
from calligram.errors import UserError


def test_summary_counts_each_kind_and_names_the_first_items() -> None:
    problems = Problems()
    for number in range(5):
        problems.skip("unusable image", f"{number}.jpg", "empty")
    problems.note("animated", "a.gif")
    assert problems.summary() == [
        "5 skipped: unusable image (0.jpg, 1.jpg, 2.jpg, ...)",
        "1 noted: animated (a.gif)",
    ]


def test_strict_refuses_the_first_skipped_item_by_name() -> None:
    problems = Problems(strict=True)
    with pytest.raises(UserError, match=r"unusable image: a\.jpg: the file is empty \(refused because of --strict"):
        problems.skip("unusable image", "a.jpg", "the file is empty")


def test_strict_refuses_a_repaired_item() -> None:
    with pytest.raises(UserError, match="without it the item is repaired and kept"):
        Problems(strict=True).repair("unknown split", "a.jpg")


def test_strict_accepts_noted_items() -> None:
    problems = Problems(strict=True)
    problems.note("animated", "a.gif")
    assert [p.skipped for p in problems.found] == [False]


def test_rows_have_every_field() -> None:
    problems = Problems()
    problems.repair("unknown split", "a.jpg", "'x'")
    assert problems.rows() == [{"kind": "unknown split", "item": "a.jpg", "detail": "'x'", "skipped": False}]
