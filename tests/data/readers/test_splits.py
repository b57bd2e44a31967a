from __future__ import annotations

from calligram.data.draft import CaptionRecord, Draft, ImageRecord
from calligram.data.problems import Problems
from calligram.data.readers.splits import assign_missing, by_hash, canonical


def test_names_of_splits_are_made_one() -> None:
    problems = Problems()
    names = ["train", "restval", "val", "Validation", " test ", None, ""]
    assert [canonical(n, "a", problems) for n in names] == ["train", "train", "dev", "dev", "test", None, None]
    assert not problems.found


def test_an_unknown_split_is_reported_and_left_out() -> None:
    problems = Problems()
    assert canonical("extra", "a.jpg", problems) is None
    assert problems.found[0].kind == "unknown split"
    assert problems.found[0].detail.startswith("'extra' is none of train")


def test_hashed_splits_have_about_their_shares() -> None:
    splits = [by_hash(f"{n}.jpg", (0.8, 0.1, 0.1)) for n in range(5000)]
    assert abs(splits.count("train") / 5000 - 0.8) < 0.03
    assert abs(splits.count("test") / 5000 - 0.1) < 0.02


def test_images_of_one_person_share_a_hashed_split() -> None:
    draft = Draft("people", [ImageRecord(f"{n}", None, identity=n % 7) for n in range(70)])
    draft.captions.append(CaptionRecord("c", "x", ("0",)))
    assign_missing(draft, (0.5, 0.25, 0.25))
    assert all(len({r.split for r in draft.images if r.identity == person}) == 1 for person in range(7))
    assert len({r.split for r in draft.images}) > 1


def test_a_draft_with_any_split_is_left_as_it_is() -> None:
    draft = Draft("some", [ImageRecord("a", None, "test"), ImageRecord("b", None)], [CaptionRecord("c", "x", ("a",))])
    assign_missing(draft, (0.8, 0.1, 0.1))
    assert [r.split for r in draft.images] == ["test", None]
