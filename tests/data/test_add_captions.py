from __future__ import annotations

import os
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from calligram.data import add_captions
from calligram.data.add_captions import (
    NewCaption,
    add_new_captions,
    caption_revisions,
    clean_caption,
    remove_last_captions,
)
from calligram.data.collection import Collection
from calligram.data.draft import CaptionRecord, Draft, ImageRecord
from calligram.data.write_collection import write_draft
from calligram.errors import UserError


@pytest.fixture
def copy(tiny, tmp_path):
    shutil.copytree(tiny.folder, tmp_path / "copy")
    return tmp_path / "copy"


def pairs(collection, table="matches"):
    """(image id, text) of every match, in order."""
    ids, texts = collection.column("images", "id"), collection.column("captions", "text")
    both = zip(collection.numbers(table, "image"), collection.numbers(table, "caption"), strict=True)
    return [(ids[i], texts[c]) for i, c in both]


def test_captions_are_added_at_the_end_and_nothing_else_changes(copy):
    before = Collection.open(copy)
    known = pairs(before)
    added = add_new_captions(copy, [NewCaption("train-2", " a blue\n disc "), NewCaption("train-5", "night")])
    after = added.collection
    assert (added.captions, added.duplicates) == (1, 1)  # "a blue disc" was there
    assert pairs(after) == [*known, ("train-5", "night")]
    assert after.manifest["counts"]["captions"] == len(after.table("captions")) == len(before.table("captions")) + 1
    assert after.fingerprint != before.fingerprint
    for name in ("images", "regions", "phrases", "groundings"):
        assert after.table(name).equals(before.table(name))
    found = after.sentences("train")
    assert "night" in [found.texts.strings[t] for t in found.matches.texts_of(5)]


def test_adding_the_same_captions_twice_changes_nothing(copy):
    first = add_new_captions(copy, [NewCaption("train-5", "night")]).collection
    again = add_new_captions(copy, [NewCaption("train-5", "night"), NewCaption("train-5", " night ")])
    assert (again.captions, again.duplicates) == (0, 2)
    assert again.collection.fingerprint == first.fingerprint


def test_an_open_collection_keeps_reading_its_own_revision(copy):
    opened = Collection.open(copy)
    for number in range(4):
        add_new_captions(copy, [NewCaption("train-5", f"night {number}")])
    assert len(opened.table("captions")) == len(Collection.open(copy).table("captions")) - 4


def test_replaced_tables_are_removed_after_the_waiting_time(copy):
    for number in range(4):
        add_new_captions(copy, [NewCaption("train-5", f"night {number}")])
        for file in copy.glob("*.parquet"):  # as if an hour had passed
            seconds = file.stat().st_mtime - 3600
            os.utime(file, (seconds, seconds))
    assert {f.name for f in copy.glob("captions*.parquet")} == {"captions.3.parquet", "captions.4.parquet"}
    assert len(Collection.open(copy).table("regions")) == 18


def test_earlier_states_can_be_restored(copy):
    before = Collection.open(copy)
    first = add_new_captions(copy, [NewCaption("train-5", "night"), NewCaption("dev-0", "fire")]).collection
    add_new_captions(copy, [NewCaption("train-1", "grass")])
    assert [(a.revision, a.captions) for a in caption_revisions(Collection.open(copy))] == [
        (1, (NewCaption("train-5", "night"), NewCaption("dev-0", "fire"))),
        (2, (NewCaption("train-1", "grass"),)),
    ]
    assert remove_last_captions(copy).captions == (NewCaption("train-1", "grass"),)
    assert Collection.open(copy).table("captions").equals(first.table("captions"))
    assert remove_last_captions(copy).revision == 1
    assert pairs(Collection.open(copy)) == pairs(before)
    with pytest.raises(UserError, match="nothing to remove"):
        remove_last_captions(copy)
    assert add_new_captions(copy, [NewCaption("train-1", "grass")]).captions == 1


def test_true_pairs_stay_a_superset_of_matches(tmp_path):
    draft = Draft("true", [ImageRecord(name, None, "train") for name in "ab"], [CaptionRecord("c", "both", ("a",))])
    draft.also_true = np.array([[0, 0], [1, 0]])
    write_draft(draft, tmp_path / "collection")
    after = add_new_captions(tmp_path / "collection", [NewCaption("b", "mine")]).collection
    assert pairs(after, "also_true") == [("a", "both"), ("b", "both"), ("b", "mine")]
    remove_last_captions(tmp_path / "collection")
    assert pairs(Collection.open(tmp_path / "collection"), "also_true") == [("a", "both"), ("b", "both")]


def test_captions_can_be_added_to_a_collection_without_captions(tmp_path):
    write_draft(Draft("bare", [ImageRecord("a", None, "train")]), tmp_path / "collection")
    after = add_new_captions(tmp_path / "collection", [NewCaption("a", "first")]).collection
    assert pairs(after) == [("a", "first")]
    assert not len(after.unannotated("train"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "the caption is empty")
            for text in (" \n\t\x00", "\u200b", "\u200d \u202e", "...", "\u3164", "\u0301")
        ),
        ("x" * 1001, "has 1001 characters; at most 1000"),
    ],
)
def test_invalid_captions_are_refused_and_nothing_is_written(copy, text, message):
    before = Collection.open(copy)
    with pytest.raises(UserError, match=message):
        add_new_captions(copy, [NewCaption("train-5", "night"), NewCaption("train-1", text)])
    assert Collection.open(copy).manifest == before.manifest


def test_an_unknown_image_is_refused_with_the_nearest_id(copy):
    with pytest.raises(UserError, match=r"no image 'train-55' and 1 more in .*; did you mean 'train-5'\?"):
        add_new_captions(copy, [NewCaption("train-55", "night"), NewCaption("x", "night")])


def test_captions_are_written_on_one_line_without_control_characters():
    assert clean_caption(" two\n\tdogs\x07 \ud83d run ") == "two dogs ? run"
    assert clean_caption("a \u202egod\u202c\u200b in\u00adside \ufeff") == "a god inside"
    assert [clean_caption(text) for text in ("7", "🐕", "犬", "$")] == ["7", "🐕", "犬", "$"]
    assert clean_caption("a man\u200c\u200ds 犬") == "a man\u200c\u200ds 犬"


def test_concurrent_writers_wait_for_each_other(copy):
    def add(number: int) -> int:
        return add_new_captions(copy, [NewCaption("train-5", f"night {number}")]).captions

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(add, range(16))) == 16
    texts = [text for image, text in pairs(Collection.open(copy)) if text.startswith("night ")]
    assert sorted(texts) == sorted(f"night {n}" for n in range(16))


def test_a_writer_that_dies_before_the_manifest_changes_nothing(copy, monkeypatch):
    before = Collection.open(copy)

    def dies(folder, manifest):
        raise KeyboardInterrupt

    monkeypatch.setattr(add_captions, "replace_manifest", dies)
    with pytest.raises(KeyboardInterrupt):
        add_new_captions(copy, [NewCaption("train-5", "night")])
    assert Collection.open(copy).fingerprint == before.fingerprint
    monkeypatch.undo()
    assert add_new_captions(copy, [NewCaption("train-5", "day")]).captions == 1
    assert pairs(Collection.open(copy))[-1] == ("train-5", "day")


WRITER = """
import sys
from pathlib import Path
from calligram.data.add_captions import NewCaption, add_new_captions
print("ready", flush=True)
for number in range(10_000):
    add_new_captions(Path(sys.argv[1]), [NewCaption("train-1", f"{sys.argv[2]}.{number} one"),
                                         NewCaption("train-2", f"{sys.argv[2]}.{number} two")])
    print(number, flush=True)
"""


def test_a_process_killed_at_any_time_leaves_complete_additions(copy, preloaded):
    moments = random.Random(0)
    for turn in range(4):
        with preloaded.start(WRITER, copy, turn) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(moments.uniform(0.05, 0.4))
            process.kill()
            told = [int(line) for line in process.stdout.read().splitlines() if line.isdigit()]
        found = [text for _, text in pairs(Collection.open(copy)) if text.startswith(f"{turn}.")]
        count = len(found) // 2
        assert found == [f"{turn}.{n} {which}" for n in range(count) for which in ("one", "two")]
        # Nothing that was told is lost; at most the addition under way was done and could not be told.
        assert len(told) <= count <= len(told) + 1
    assert add_new_captions(copy, [NewCaption("train-5", "night")]).captions == 1
