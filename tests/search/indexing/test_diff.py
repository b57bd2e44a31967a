"""What an indexing run decides, from scans and states written by hand: no library, no files."""

from __future__ import annotations

import copy
from collections import Counter

import pytest

from calligram.search.indexing.diff import (
    Change,
    ContentChange,
    ForgottenPicture,
    IndexedItem,
    LibraryState,
    diff,
    forgotten_key,
    pictures_to_encode,
    resolve,
    short_hash,
)
from calligram.search.indexing.sources import EMPTY_DIGEST, FolderScan, PictureFacts, ScannedPicture


def picture(key: str, size: int = 10, mtime: int = 1, digest: str = EMPTY_DIGEST) -> ScannedPicture:
    return ScannedPicture(key, key, -1, size, mtime, digest=digest)


def item(id: str, size: int = 10, mtime: int = 1, content: str = "", present: bool = True) -> IndexedItem:
    return IndexedItem(id, size, mtime, content or f"content of {id}", present, EMPTY_DIGEST)


def state_of(**items: IndexedItem) -> LibraryState:
    """A library with these items, by key without its suffix."""
    found = {f"{key}.jpg": one for key, one in items.items()}
    by_hash = {one.hash: one.id for one in found.values()}
    return LibraryState(0, items=found, ids={one.id for one in found.values()}, by_hash=by_hash)


def actions(scan: FolderScan, state: LibraryState) -> dict[str, str]:
    """The action for each key; nothing that was passed in may change."""
    before = copy.deepcopy((scan, state))
    changes = diff(scan, state)
    assert (scan, state) == before
    return {change.key: change.action for change in changes}


def row(key: str, content: str, encoded: bool = True) -> dict[str, object]:
    """A row of the encoder."""
    return {"key": key, "bytes": 10, "mtime": 2, "hash": content, **({"vector": b"v"} if encoded else {})}


def after(scan: FolderScan, state: LibraryState, rows: list[dict[str, object]]) -> list[ContentChange]:
    """What is decided about rows after a scan; nothing that was passed in may change."""
    state.set_missing(diff(scan, state))
    before = copy.deepcopy((rows, state))
    changes = resolve(rows, state)
    assert (rows, state) == before
    return changes


def test_an_unchanged_picture_needs_nothing():
    assert actions(FolderScan([picture("a.jpg")]), state_of(a=item("A"))) == {"a.jpg": "unchanged"}


def test_a_new_picture_is_encoded():
    scan = FolderScan([picture("a.jpg"), picture("b.jpg")])
    assert actions(scan, state_of(a=item("A"))) == {"a.jpg": "unchanged", "b.jpg": "encode"}
    assert pictures_to_encode(diff(scan, state_of(a=item("A")))) == [picture("b.jpg")]


@pytest.mark.parametrize("changed", [picture("a.jpg", size=11), picture("a.jpg", mtime=2)])
def test_another_size_or_date_is_encoded(changed):
    assert actions(FolderScan([changed]), state_of(a=item("A"))) == {"a.jpg": "encode"}


def test_other_facts_of_the_same_picture_are_written_again():
    facts = PictureFacts({"year": 2020}, ("a dog",))
    scan = FolderScan([picture("a.jpg", digest=facts.digest)])
    (change,) = diff(scan, state_of(a=item("A")))
    assert change == Change("described", "a.jpg", scan.entries[0], item("A"))


def test_a_picture_that_was_gone_is_read_even_if_it_looks_the_same():
    assert actions(FolderScan([picture("a.jpg")]), state_of(a=item("A", present=False))) == {"a.jpg": "encode"}


def test_items_that_the_scan_does_not_have_are_gone_once():
    state = state_of(a=item("A"), b=item("B", present=False))
    assert actions(FolderScan(), state) == {"a.jpg": "gone", "b.jpg": "still gone"}


def test_items_below_a_folder_that_could_not_be_read_are_left_alone():
    state = LibraryState(0, items={"trip/a.jpg": item("A"), "tripod.jpg": item("B")})
    assert actions(FolderScan(unread=["trip"]), state) == {"tripod.jpg": "gone"}
    assert actions(FolderScan(unread=[""]), state) == {}


def test_a_bad_file_is_read_again_only_when_it_changes():
    state = LibraryState(0, problems={"a.jpg": (10, 1), "b.jpg": (10, 1)})
    scan = FolderScan([picture("a.jpg"), picture("b.jpg", mtime=2)])
    assert actions(scan, state) == {"a.jpg": "still bad", "b.jpg": "encode"}


def test_problems_of_a_scan_are_recorded_once_and_deleted_with_their_file():
    state = LibraryState(0, problems={"old.jpg": (-1, -1), "same.jpg": (-1, -1)})
    changes = diff(FolderScan(problems={"new.jpg": "no such file", "same.jpg": "no such file"}), state)
    assert changes == [Change("problem", "new.jpg", reason="no such file"), Change("solved", "old.jpg")]


def test_an_item_whose_file_cannot_be_scanned_is_gone_and_has_a_problem():
    changes = diff(FolderScan(problems={"a.jpg": "permission denied"}), state_of(a=item("A")))
    assert [(change.action, change.key) for change in changes] == [("gone", "a.jpg"), ("problem", "a.jpg")]


def test_a_forgotten_picture_stays_away_until_it_changes():
    forgotten = {forgotten_key(0, "a.jpg"): ForgottenPicture(10, 1, "content")}
    state = LibraryState(0, forgotten=forgotten, forgotten_hashes={"content"})
    assert actions(FolderScan([picture("a.jpg")]), state) == {"a.jpg": "forgotten"}
    assert actions(FolderScan([picture("a.jpg", size=11)]), state) == {"a.jpg": "encode"}
    assert actions(FolderScan([picture("a.jpg")]), LibraryState(1, forgotten=forgotten)) == {"a.jpg": "encode"}
    # Under another name it is recognised by its content.
    assert after(FolderScan(), state, [row("b.jpg", "content")]) == [ContentChange("forgotten", "")]
    assert "content" in state


def test_every_picture_item_and_problem_has_one_change():
    state = state_of(a=item("A"), b=item("B"), c=item("C", present=False))
    state.problems["d.jpg"] = 10, 1
    scan = FolderScan([picture("a.jpg"), picture("e.jpg")], problems={"f.jpg": "bad"})
    assert Counter(change.key for change in diff(scan, state)) == Counter([f"{key}.jpg" for key in "aebcfd"])


def test_a_new_content_is_added_under_a_new_id():
    changes = after(FolderScan(), LibraryState(3), [row("a.jpg", "x"), row("b.jpg", "x")])
    assert changes == [ContentChange("added", short_hash("3/a.jpg")), ContentChange("added", short_hash("3/b.jpg"))]


def test_a_picture_with_another_content_keeps_its_id():
    scan = FolderScan([picture("a.jpg", mtime=2)])
    assert after(scan, state_of(a=item("A")), [row("a.jpg", "other")]) == [ContentChange("changed", "A")]


def test_a_touched_picture_keeps_its_content_and_one_that_was_gone_returns():
    scan = FolderScan([picture("a.jpg", mtime=2), picture("b.jpg")])
    state = state_of(a=item("A"), b=item("B", present=False))
    rows = [row("a.jpg", "content of A", encoded=False), row("b.jpg", "content of B", encoded=False)]
    assert after(scan, state, rows) == [ContentChange("touched", "A"), ContentChange("returned", "B")]


def test_a_renamed_picture_keeps_its_id():
    scan = FolderScan([picture("new.jpg")])
    changes = after(scan, state_of(old=item("A")), [row("new.jpg", "content of A", encoded=False)])
    assert changes == [ContentChange("moved", "A", moved_from="old.jpg")]


def test_a_picture_that_returns_under_another_name_keeps_its_id():
    scan = FolderScan([picture("new.jpg")])
    changes = after(scan, state_of(old=item("A", present=False)), [row("new.jpg", "content of A", encoded=False)])
    assert changes == [ContentChange("moved", "A", moved_from="old.jpg")]


def test_a_copied_picture_takes_the_encodings_of_the_other():
    scan = FolderScan([picture("a.jpg"), picture("copy.jpg")])
    changes = after(scan, state_of(a=item("A")), [row("copy.jpg", "content of A", encoded=False)])
    assert changes == [ContentChange("copied", short_hash("0/copy.jpg"), like="A")]


def test_of_two_new_names_for_one_missing_item_one_is_moved_and_one_copied():
    scan = FolderScan([picture("x.jpg"), picture("y.jpg")])
    rows = [row(name, "content of A", encoded=False) for name in ("x.jpg", "y.jpg")]
    moved, copied = after(scan, state_of(old=item("A")), rows)
    assert moved == ContentChange("moved", "A", moved_from="old.jpg")
    assert copied == ContentChange("copied", short_hash("0/y.jpg"), like="A")


def test_two_missing_items_with_one_content_are_each_moved_once():
    scan = FolderScan([picture("x.jpg"), picture("y.jpg"), picture("z.jpg")])
    state = state_of(a=item("A", content="c"), b=item("B", content="c"))
    changes = after(scan, state, [row(name, "c", encoded=False) for name in ("x.jpg", "y.jpg", "z.jpg")])
    assert [(change.outcome, change.moved_from) for change in changes] == [
        ("moved", "b.jpg"), ("moved", "a.jpg"), ("copied", None),
    ]  # fmt: skip
    assert [change.id for change in changes[:2]] == ["B", "A"]


def test_a_picture_that_breaks_has_a_problem_and_its_item_is_named():
    scan = FolderScan([picture("a.jpg", mtime=2), picture("b.jpg")])
    rows = [{"key": "a.jpg", "problem": "cut off"}, {"key": "b.jpg", "problem": "cut off"}]
    assert after(scan, state_of(a=item("A")), rows) == [ContentChange("problem", "A"), ContentChange("problem", "")]


def test_a_content_that_no_item_has_any_more_is_not_encoded():
    assert after(FolderScan(), LibraryState(0), [row("a.jpg", "x", encoded=False)]) == [
        ContentChange("not encoded", "")
    ]


def test_a_new_id_differs_from_that_of_a_renamed_picture_and_from_those_given_before():
    taken = short_hash("0/a.jpg")
    state = LibraryState(0, items={"b.jpg": item(taken)}, ids={taken})
    (change,) = after(FolderScan([picture("b.jpg")]), state, [row("a.jpg", "x")])
    assert change == ContentChange("added", short_hash("0/a.jpg#1"))


def written(key: str, id: str, content: str) -> dict[str, dict[str, object]]:
    return {id: {"id": id, "key": key, "bytes": 10, "mtime": 2, "hash": content, "digest": EMPTY_DIGEST}}


def test_a_recorded_move_changes_key_and_candidates():
    scan, state = FolderScan([picture("new.jpg")]), state_of(old=item("A"))
    rows = [row("new.jpg", "content of A", encoded=False)]
    changes = after(scan, state, rows)
    assert state.gone == {"old.jpg"}
    state.record(zip(rows, changes, strict=True), written("new.jpg", "A", "content of A"), set())
    assert set(state.items) == {"new.jpg"}
    assert state.gone == set()
    assert state.missing == {"content of A": []}
    assert state.record_gone() == []
    # Recorded, the same content under a third name is a copy.
    (copied,) = resolve([row("third.jpg", "content of A", encoded=False)], state)
    assert (copied.outcome, copied.like) == ("copied", "A")


def test_a_recorded_change_of_content_frees_the_old_content():
    scan, state = FolderScan([picture("a.jpg", mtime=2)]), state_of(a=item("A"))
    rows = [row("a.jpg", "other")]
    state.record(zip(rows, after(scan, state, rows), strict=True), written("a.jpg", "A", "other"), set())
    assert "content of A" not in state
    assert "other" in state
    assert resolve([row("b.jpg", "content of A", encoded=False)], state) == [ContentChange("not encoded", "")]


def test_items_that_are_gone_are_recorded_as_such():
    state = state_of(a=item("A"), b=item("B"))
    state.set_missing(diff(FolderScan([picture("b.jpg")]), state))
    assert state.record_gone() == ["A"]
    assert not state.items["a.jpg"].present
    assert state.items["b.jpg"].present
