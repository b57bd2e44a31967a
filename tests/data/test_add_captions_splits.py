from __future__ import annotations

from collections import Counter

import pytest

from calligram.data.add_captions import NewCaption, add_new_captions, caption_revisions, remove_last_captions
from calligram.data.collection import Collection
from calligram.data.draft import CaptionRecord, Draft, ImageRecord, Problems
from calligram.data.readers.source import DEFAULT_SPLIT_SHARES, assign_missing_splits, split_by_hash
from calligram.data.write_collection import write_draft
from calligram.errors import UserError


def images(count, **changes):
    return [ImageRecord(f"{n}.jpg", None, **changes) for n in range(count)]


def splits(folder):
    opened = Collection.open(folder)
    return dict(zip(opened.column("images", "id"), opened.column("images", "split"), strict=True))


def captions(*ids):
    return [NewCaption(image, f"what {image} shows") for image in ids]


@pytest.fixture
def bare(tmp_path):
    """Forty images, no caption, no split."""
    return write_draft(Draft("bare", images(40)), tmp_path / "bare").folder


def test_new_captions_of_a_collection_without_splits_assign_the_splits_of_an_import(bare):
    ids = [f"{n}.jpg" for n in range(30)]
    draft = Draft("whole", images(30), [CaptionRecord(i, i, (i,)) for i in ids])
    assign_missing_splits(draft, DEFAULT_SPLIT_SHARES, Problems())
    added = add_new_captions(bare, captions(*ids))
    expected = {record.id: record.split for record in draft.images}
    assert splits(bare) == expected | {f"{n}.jpg": None for n in range(30, 40)}
    assert added.splits == Counter(expected.values())
    assert sum(len(added.collection.sentences(s).texts) for s in ("train", "dev", "test")) == 30
    assert len(added.collection.unannotated("train")) == 10
    assert not added.collection.metadata_columns


@pytest.mark.parametrize("together", [True, False])
def test_three_captions_fill_three_splits_together_or_one_after_another(bare, together):
    same = [f"{n}.jpg" for n in range(40) if split_by_hash(f"{n}.jpg") == "train"][:4]
    for part in [same] if together else [[image] for image in same]:
        add_new_captions(bare, captions(*part))
    found = splits(bare)
    assert Counter(found[image] for image in same) == {"train": 2, "dev": 1, "test": 1}


def test_removing_captions_removes_their_splits(bare):
    before = Collection.open(bare)
    add_new_captions(bare, captions("0.jpg", "1.jpg", "2.jpg"))
    first = splits(bare)
    add_new_captions(bare, [NewCaption("0.jpg", "more of it"), *captions("3.jpg")])
    assert splits(bare)["0.jpg"] == first["0.jpg"]
    taken = remove_last_captions(bare)
    assert [c.split is None for c in taken.captions] == [True, False]
    assert splits(bare) == first
    earlier = remove_last_captions(bare)
    assert Collection.open(bare).table("images").equals(before.table("images"))
    add_new_captions(bare, earlier.captions)
    assert splits(bare) == first
    assert caption_revisions(Collection.open(bare))[0].captions == earlier.captions


def test_newly_captioned_images_go_to_train_if_the_source_has_splits(tmp_path):
    draft = Draft("partly", [*images(20), ImageRecord("t", None, "test"), ImageRecord("d", None, "dev")])
    folder = write_draft(draft, tmp_path / "partly").folder
    for part in (["0.jpg"], [f"{n}.jpg" for n in range(1, 20)]):
        add_new_captions(folder, captions(*part, "t"))
    assert Counter(splits(folder).values()) == {"train": 20, "test": 1, "dev": 1}


def test_images_of_one_identity_stay_together(tmp_path):
    people = [ImageRecord(f"{n}", None, identity=n % 4) for n in range(12)]
    folder = write_draft(Draft("people", people), tmp_path / "people").folder
    for part in (range(5), range(5, 12)):
        add_new_captions(folder, captions(*map(str, part)))
    found = splits(folder)
    assert all(found[f"{n}"] == found[f"{n % 4}"] for n in range(12))
    assert set(found.values()) == {"train", "dev", "test"}


def test_a_requested_split_is_used(bare):
    named = [NewCaption("0.jpg", "a", "test"), NewCaption("0.jpg", "b"), NewCaption("1.jpg", "c", "dev")]
    assert add_new_captions(bare, named).splits == {"test": 1, "dev": 1}
    assert add_new_captions(bare, [NewCaption("0.jpg", "d", "test")]).captions == 1
    assert (splits(bare)["0.jpg"], splits(bare)["1.jpg"]) == ("test", "dev")


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ([NewCaption("t", "x", "train")], r"image 't' is in split test, not train; a caption cannot move an image"),
        ([NewCaption("n", "x", "dev"), NewCaption("n", "y", "test")], r"'n' has the splits dev and test; give one"),
        ([NewCaption("n", "old", "dev")], r"'n' has this caption already and has no split"),
    ],
)
def test_requested_splits_that_cannot_be_assigned_are_refused(tmp_path, new, message):
    draft = Draft("two", [ImageRecord("t", None, "test"), ImageRecord("n", None)], [CaptionRecord("c", "old", ("n",))])
    made = write_draft(draft, tmp_path / "two")
    with pytest.raises(UserError, match=message):
        add_new_captions(made.folder, [*captions("t"), *new])
    assert Collection.open(made.folder).manifest == made.manifest
