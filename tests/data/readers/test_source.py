from __future__ import annotations

from collections.abc import Sequence

import pytest

from calligram.data.collection import SPLITS
from calligram.data.draft import CaptionRecord, Draft, ImageRecord, Problems
from calligram.data.readers.source import DEFAULT_SPLIT_SHARES, assign_missing_splits, canonical_split, split_by_hash


def test_split_names_are_normalised() -> None:
    problems = Problems()
    names = ["train", "restval", "val", "Validation", " test ", None, ""]
    assert [canonical_split(n, "a", problems) for n in names] == ["train", "train", "dev", "dev", "test", None, None]
    assert not problems.found


def test_an_unknown_split_is_reported_and_left_out() -> None:
    problems = Problems()
    assert canonical_split("extra", "a.jpg", problems) is None
    assert problems.found[0].kind == "unknown split"
    assert problems.found[0].detail.startswith("'extra' is none of train")
    # Another row may name a split, or the hash may give one: nothing is promised here.
    assert problems.found[0].detail.endswith("read as no split")


def test_hashed_splits_have_about_their_shares() -> None:
    splits = [split_by_hash(f"{n}.jpg", (0.8, 0.1, 0.1)) for n in range(5000)]
    assert abs(splits.count("train") / 5000 - 0.8) < 0.03
    assert abs(splits.count("test") / 5000 - 0.1) < 0.02


def test_images_of_one_person_share_a_hashed_split() -> None:
    draft = Draft("people", [ImageRecord(f"{n}", None, identity=n % 7) for n in range(70)])
    draft.captions.append(CaptionRecord("c", "x", ("0",)))
    assign_missing_splits(draft, (0.5, 0.25, 0.25), Problems())
    assert all(len({r.split for r in draft.images if r.identity == person}) == 1 for person in range(7))
    assert len({r.split for r in draft.images}) > 1


def test_a_draft_with_a_split_does_not_change() -> None:
    draft = Draft("some", [ImageRecord("a", None, "test"), ImageRecord("b", None)], [CaptionRecord("c", "x", ("a",))])
    assign_missing_splits(draft, (0.8, 0.1, 0.1), Problems())
    assert [r.split for r in draft.images] == ["test", None]


def captioned(ids: Sequence[str], plain: Sequence[str] = ()) -> Draft:
    images = [ImageRecord(i, None) for i in (*ids, *plain)]
    return Draft("few", images, [CaptionRecord(f"{i}#0", "x", (i,)) for i in ids])


def in_train(count: int) -> list[str]:
    """Ids that their hash puts into train."""
    return [name for name in (f"{n}.jpg" for n in range(100)) if split_by_hash(name) == "train"][:count]


@pytest.mark.parametrize("count", [3, 4, 10])
def test_every_split_of_a_small_collection_has_a_captioned_image(count: int) -> None:
    draft, problems = captioned(in_train(count), plain=[f"plain{n}" for n in range(50)]), Problems()
    assign_missing_splits(draft, DEFAULT_SPLIT_SHARES, problems)
    splits = [record.split for record in draft.images[:count]]
    assert {name: splits.count(name) for name in SPLITS} == {"train": count - 2, "dev": 1, "test": 1}
    assert {p.item for p in problems.found} < set(in_train(count))
    assert len(problems.found) == 2
    assert [r.split for r in draft.images[count:]] == [split_by_hash(r.id) for r in draft.images[count:]]


def test_train_gets_an_image_when_the_hash_leaves_it_empty() -> None:
    names = [name for name in (f"{n}.jpg" for n in range(200)) if split_by_hash(name) == "dev"][:3]
    draft = captioned(names)
    assign_missing_splits(draft, DEFAULT_SPLIT_SHARES, Problems())
    assert {r.split for r in draft.images} == set(SPLITS)


def test_fewer_than_three_captioned_images_are_noted_and_left_to_the_hash() -> None:
    draft, problems = captioned(in_train(2)), Problems(strict=True)
    assign_missing_splits(draft, DEFAULT_SPLIT_SHARES, problems)
    assert [r.split for r in draft.images] == ["train", "train"]
    assert [(p.kind, p.item) for p in problems.found] == [("too few captioned images to make splits", "few")]


def test_all_pictures_of_a_person_move_to_the_same_split() -> None:
    draft = captioned([f"{n}.jpg" for n in range(9)])
    for number, record in enumerate(draft.images):
        record.identity = number % 3
    assign_missing_splits(draft, DEFAULT_SPLIT_SHARES, Problems())
    assert len({(r.identity, r.split) for r in draft.images}) == 3
    assert {r.split for r in draft.images} == set(SPLITS)


def test_a_split_with_no_share_stays_empty() -> None:
    draft, problems = captioned(in_train(5)), Problems()
    assign_missing_splits(draft, (1, 0, 0), problems)
    assert {r.split for r in draft.images} == {"train"}
    assert not problems.found


def test_larger_collections_keep_their_hashed_splits() -> None:
    draft, problems = captioned([f"{n}.jpg" for n in range(300)]), Problems()
    assign_missing_splits(draft, DEFAULT_SPLIT_SHARES, problems)
    assert [r.split for r in draft.images] == [split_by_hash(r.id) for r in draft.images]
    assert not problems.found
