from __future__ import annotations

import errno
import os

import pytest

from calligram.data.pictures import PictureError
from calligram.search.indexing.diff import IndexedItem, LibraryState, diff
from calligram.search.indexing.sources import FolderScan, ScannedPicture, read_file, scan_folder, shard_of


def keys(root):
    return [entry.key for entry in scan_folder(root).entries]


def touch(*files):
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")


def test_pictures_are_found_in_a_fixed_order_and_nothing_else(tmp_path):
    touch(*(tmp_path / n for n in ("b.JPG", "a/z.png", "a/notes.txt", ".hidden.jpg", ".cache/x.jpg", "ä ö/é.webp")))
    assert keys(tmp_path) == ["a/z.png", "b.JPG", "ä ö/é.webp"]


def test_libraries_and_collections_within_are_left_out_but_the_folder_itself_is_not(tmp_path):
    touch(tmp_path / "lib" / "library.json", tmp_path / "lib" / "a.jpg", tmp_path / "c" / "collection.json")
    touch(tmp_path / "c" / "images" / "b.jpg", tmp_path / "own.jpg", tmp_path / "library.json")
    assert keys(tmp_path) == ["own.jpg"]


def test_links_that_go_round_end_and_a_picture_is_known_by_its_own_path(tmp_path):
    touch(tmp_path / "z" / "deep" / "a.jpg")
    (tmp_path / "z" / "deep" / "up").symlink_to(tmp_path)
    (tmp_path / "a-link").symlink_to(tmp_path / "z")
    assert keys(tmp_path) == ["z/deep/a.jpg"]


def test_a_linked_folder_from_elsewhere_is_followed(tmp_path):
    touch(tmp_path / "elsewhere" / "a.jpg")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    assert keys(tmp_path / "root") == ["link/a.jpg"]


def test_a_broken_link_and_an_impossible_name_are_problems(tmp_path):
    (tmp_path / "nowhere.jpg").symlink_to(tmp_path / "missing.jpg")
    touch(tmp_path / os.fsdecode(b"bad\xff.jpg"))
    found = scan_folder(tmp_path)
    assert found.entries == []
    assert found.problems == {
        "nowhere.jpg": "No such file or directory",
        "bad\\udcff.jpg": "the name is not valid Unicode; rename the file",
    }


def test_pipes_sockets_devices_and_loops_of_links_are_problems_with_their_kind(tmp_path, odd_files):
    odd_files(tmp_path)
    found = scan_folder(tmp_path)
    assert found.entries == []
    kind = "{}, not a regular file".format
    loop = os.strerror(errno.ELOOP)
    assert found.problems == {
        "pipe.jpg": kind("a named pipe"),
        "linked-pipe.jpg": kind("a named pipe"),
        "socket.jpg": kind("a socket"),
        "null.jpg": kind("a device"),
        **{"loop": loop, "back.jpg": loop, "there.jpg": loop},
    }


def test_items_behind_a_link_that_became_a_loop_are_not_gone(tmp_path):
    (tmp_path / "disk").symlink_to(tmp_path / "disk")
    state = LibraryState(0, items={"disk/a.jpg": IndexedItem("a", 1, 1, "hash", True, "")})
    assert [change.action for change in diff(scan_folder(tmp_path), state)] == ["problem"]


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "huge.jpg").open("wb") as stream:
        stream.truncate(20_000_000_000)
    (entry,) = scan_folder(tmp_path).entries
    with pytest.raises(PictureError, match=r"too large: 20\.0 GB; at most 1 GB are accepted: huge\.jpg"):
        read_file(tmp_path, entry)


def test_a_file_that_became_a_pipe_after_the_scan_is_not_waited_for(tmp_path):
    touch(tmp_path / "a.jpg")
    (entry,) = scan_folder(tmp_path).entries
    (tmp_path / "a.jpg").unlink()
    os.mkfifo(tmp_path / "a.jpg")
    with pytest.raises(PictureError, match="a named pipe, not a regular file"):
        read_file(tmp_path, entry)


def test_items_below_a_folder_that_cannot_be_read_are_not_gone(tmp_path):
    known = {k: IndexedItem(k, 1, 1, f"hash {k}", True, "") for k in ("sub/a.jpg", "sub/deep/b.jpg", "subtle.jpg")}
    state = LibraryState(0, items=known)
    changes = diff(FolderScan(unread=["sub"]), state)
    assert [(change.action, change.key) for change in changes] == [("gone", "subtle.jpg")]


@pytest.mark.parametrize("count", [1, 3, 16])
def test_shards_cover_everything_once(count):
    entries = [ScannedPicture(f"{n}.jpg", f"{n}.jpg", -1, 1, 1) for n in range(200)]
    shares = [shard_of(entries, number, count) for number in range(1, count + 1)]
    assert sorted(entry for share in shares for entry in share) == sorted(entries)
    assert min(len(share) for share in shares) > 0
