"""Libraries that follow their sources: what is new, changed, renamed, gone, broken, twice there."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil

import numpy as np
import pytest
import torch

from calligram.errors import UserError
from calligram.search import indexing, preparing, writing
from calligram.search.forgetting import forget
from calligram.search.indexing import index_source, stage_source
from calligram.search.library import Library
from calligram.search.locking import locked
from calligram.search.manifest import REBUILT
from calligram.search.models import Models
from calligram.search.sources import open_source
from calligram.search.staging import Shard, make_worker


@pytest.fixture(scope="module")
def models(small_run):
    return Models.load(small_run)


@pytest.fixture
def indexed(models, photos, tmp_path):
    index_source(models, photos, tmp_path / "library")
    return tmp_path / "library"


def contents(folder) -> dict[str, tuple[str, tuple[float, ...]]]:
    """Id and vector of every item by path."""
    library = Library.open(folder)
    rows = [row for row in library.rows() if row["state"] == "present"]
    vectors = library.images.vectors([row["id"] for row in rows]) if rows else []
    return {row["path"]: (row["id"], tuple(v.tolist())) for row, v in zip(rows, vectors, strict=True)}


def same(one, two) -> bool:
    """The same items; a picture encoded beside others may differ in the last place."""
    ids = [{path: id for path, (id, _) in side.items()} for side in (one, two)]
    return ids[0] == ids[1] and all(np.allclose(one[path][1], two[path][1], atol=2e-3) for path in one)


def done(report) -> dict[str, int]:
    return {name: n for name, n in report.counts.items() if n and name not in ("unchanged", "still bad")}


def test_every_picture_becomes_an_item_with_the_vector_the_matcher_gives(models, photos, indexed):
    from PIL import Image

    found = contents(indexed)
    assert set(found) == {p.relative_to(photos).as_posix() for p in photos.rglob("*.jpg")}
    images = models.matcher.inputs.images
    for path in ("photo_0.jpg", "trip/photo_5.jpg"):
        given = images.finish(images.images([Image.open(photos / path).convert("RGB")]))
        vector = models.matcher.matcher.encode_images(given).vectors[0].detach().numpy()
        np.testing.assert_allclose(found[path][1], vector / np.linalg.norm(vector), atol=1e-3)


def test_nothing_changed_means_nothing_written(models, photos, indexed):
    before = (indexed / "library.json").stat().st_mtime_ns
    report = index_source(models, photos, indexed)
    assert report.counts["unchanged"] == 12
    assert done(report) == {}
    assert (indexed / "library.json").stat().st_mtime_ns == before


def test_a_second_run_takes_in_each_kind_of_change(models, photos, indexed, photograph):
    before = contents(indexed)
    photograph(photos / "fresh.jpg", 40)
    photograph(photos / "photo_0.jpg", 41)
    os.utime(photos / "photo_3.jpg", (1, 1))
    (photos / "photo_6.jpg").rename(photos / "trip" / "renamed.jpg")
    (photos / "photo_9.jpg").unlink()
    report = index_source(models, photos, indexed)
    assert done(report) == {"added": 1, "changed": 1, "touched": 1, "moved": 1, "gone": 1}
    assert report.library == {"items": 12, "gone": 1, "captions": 0, "problems": 0}
    after = contents(indexed)
    assert after["photo_0.jpg"][0] == before["photo_0.jpg"][0]
    assert after["photo_0.jpg"][1] != before["photo_0.jpg"][1]
    assert after["trip/renamed.jpg"] == before["photo_6.jpg"]
    assert after["photo_3.jpg"] == before["photo_3.jpg"]
    assert "photo_9.jpg" not in after
    assert done(index_source(models, photos, indexed)) == {}


def test_what_is_the_same_is_not_encoded_again(models, photos, indexed, monkeypatch):
    def never(*_, **__):
        raise AssertionError("encoded again")

    before = contents(indexed)
    (photos / "photo_6.jpg").rename(photos / "again.jpg")
    shutil.copy(photos / "photo_0.jpg", photos / "copy.jpg")
    os.utime(photos / "photo_3.jpg", (1, 1))
    monkeypatch.setattr("calligram.search.encoders.ImageEncoder.encode", never)
    assert done(index_source(models, photos, indexed)) == {"copied": 1, "moved": 1, "touched": 1}
    after = contents(indexed)
    np.testing.assert_allclose(after["copy.jpg"][1], before["photo_0.jpg"][1], atol=1e-3)
    assert after["copy.jpg"][0] != after["photo_0.jpg"][0]


def test_many_batches_at_once_keep_their_order_and_leave_torch_as_it_was(models, photos):
    threads = torch.get_num_threads()
    source = open_source(photos)
    entries = source.scan().entries
    worker = dataclasses.replace(make_worker(models, source, "cpu"), batch=2)
    rows = [row for batch in worker.run(entries, frozenset()) for row in batch]
    assert sorted(row["key"] for row in rows) == sorted(entry.key for entry in entries)
    fine = [row["key"] for row in rows if row.get("vector") is not None]
    assert len(fine) > 4
    assert fine == [entry.key for entry in entries if entry.key in set(fine)]
    assert torch.get_num_threads() == threads


def test_a_matcher_that_fails_stops_the_run_and_leaves_torch_as_it_was(models, photos, monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr("calligram.search.encoders.ImageEncoder.encode", lambda *_: 1 / 0)
    source = open_source(photos)
    with pytest.raises(ZeroDivisionError):
        list(make_worker(models, source, "cpu").run(source.scan().entries, frozenset()))
    assert torch.get_num_threads() == threads


def test_two_files_with_one_content_are_two_items_from_the_start(models, photos, tmp_path):
    shutil.copy(photos / "photo_0.jpg", photos / "copy.jpg")
    index_source(models, photos, tmp_path / "library")
    found = contents(tmp_path / "library")
    assert len(found) == 13
    assert found["copy.jpg"][1] == found["photo_0.jpg"][1]
    (photos / "photo_0.jpg").unlink()
    index_source(models, photos, tmp_path / "library")
    assert set(contents(tmp_path / "library")) == set(found) - {"photo_0.jpg"}


def test_files_that_exchange_their_contents_are_followed(models, photos, indexed):
    before = contents(indexed)
    one, two = photos / "photo_0.jpg", photos / "photo_3.jpg"
    one.rename(photos / "x")
    two.rename(one)
    (photos / "x").rename(two)
    for file in (one, two):
        os.utime(file)
    assert done(index_source(models, photos, indexed)) == {"changed": 2}
    after = contents(indexed)
    np.testing.assert_allclose(after["photo_0.jpg"][1], before["photo_3.jpg"][1], atol=1e-3)
    np.testing.assert_allclose(after["photo_3.jpg"][1], before["photo_0.jpg"][1], atol=1e-3)
    library = Library.open(indexed)
    assert library.picture(after["photo_0.jpg"][0]) == one.read_bytes()


def test_a_content_that_went_while_it_was_to_be_copied_is_encoded_after_all(
    models, photos, indexed, photograph, monkeypatch
):
    # Every picture is committed by itself: the changed one is, before the copy of what it was is looked at.
    monkeypatch.setattr(indexing, "COMMIT_ROWS", 1)
    monkeypatch.setattr("calligram.search.working.BATCH", 1)
    before = contents(indexed)
    shutil.copy(photos / "photo_0.jpg", photos / "zzz.jpg")
    photograph(photos / "photo_0.jpg", 50)
    report = index_source(models, photos, indexed)
    assert report.counts["changed"] == 1
    assert report.counts["added"] + report.counts["copied"] == 1
    np.testing.assert_allclose(contents(indexed)["zzz.jpg"][1], before["photo_0.jpg"][1], atol=1e-3)


def test_what_was_gone_comes_back_as_it_was(models, photos, indexed, tmp_path):
    before = contents(indexed)
    shutil.move(photos / "trip", tmp_path / "away")
    report = index_source(models, photos, indexed)
    assert report.counts["gone"] == 8
    assert len(Library.open(indexed).images) == 4
    gone = Library.open(indexed).item(before["trip/photo_1.jpg"][0])
    assert gone.gone
    shutil.move(tmp_path / "away", photos / "trip")
    report = index_source(models, photos, indexed)
    assert done(report) == {"returned": 8}
    after = contents(indexed)
    assert {path: id for path, (id, _) in after.items()} == {path: id for path, (id, _) in before.items()}
    for path in before:
        np.testing.assert_allclose(after[path][1], before[path][1], atol=1e-3)


def test_only_items_of_the_source_given_are_gone(models, photos, indexed, tmp_path, photograph):
    photograph(tmp_path / "more" / "photo_0.jpg", 70)
    index_source(models, tmp_path / "more", indexed)
    shutil.rmtree(photos / "trip")
    report = index_source(models, tmp_path / "more", indexed)
    assert report.counts["gone"] == 0
    library = Library.open(indexed)
    assert len(library) == 13
    assert len([row for row in library.rows() if row["path"] == "photo_0.jpg"]) == 2
    assert library.stats()["sources"] == [str(photos), str(tmp_path / "more")]


def test_bad_files_are_listed_and_tried_again_only_when_they_change(models, photos, indexed, photograph):
    (photos / "broken.jpg").write_bytes(b"no picture")
    (photos / "empty.png").write_bytes(b"")
    report = index_source(models, photos, indexed)
    assert done(report) == {"problem": 2}
    assert Library.open(indexed).problems() == [
        (str(photos / "broken.jpg"), "not a picture in a known format"),
        (str(photos / "empty.png"), "the file is empty"),
    ]
    report = index_source(models, photos, indexed)
    assert (report.counts["still bad"], done(report)) == (2, {})
    photograph(photos / "broken.jpg", 80)
    (photos / "empty.png").unlink()
    assert done(index_source(models, photos, indexed)) == {"added": 1, "solved": 1}
    assert Library.open(indexed).problems() == []


def test_a_picture_that_breaks_is_no_longer_found(models, photos, indexed):
    (photos / "photo_0.jpg").write_bytes(b"broken now")
    report = index_source(models, photos, indexed)
    assert done(report) == {"problem": 1}
    assert len(Library.open(indexed).images) == report.library["items"] == 11


def test_a_source_that_is_not_there_changes_nothing(models, photos, indexed):
    with pytest.raises(UserError, match="is not a folder; SOURCE is a folder of pictures or a collection"):
        index_source(models, photos / "nowhere", indexed)
    assert len(contents(indexed)) == 12


def test_a_second_writer_is_told_who_writes(models, photos, indexed):
    with locked(indexed, "library"), pytest.raises(UserError, match=r"is being written to by process \d+"):
        index_source(models, photos, indexed)


def test_a_reader_sees_one_state_until_it_looks_again(models, photos, indexed, photograph):
    library = Library.open(indexed)
    some = library.sample(3)
    photograph(photos / "fresh.jpg", 60)
    (photos / "photo_0.jpg").unlink()
    index_source(models, photos, indexed)
    assert len(library) == len(library.images) == len(list(library.rows())) == 12
    assert all(library.thumbnail(id) for id in some)
    assert not library.full_text("fresh", 5)
    fresh = library.refreshed()
    assert fresh.full_text("fresh", 5)
    assert fresh.refreshed() is fresh


def test_old_versions_are_deleted_when_no_reader_can_want_them(models, photos, tmp_path, photograph, monkeypatch):
    out = tmp_path / "library"
    monkeypatch.setattr(writing, "GRACE", 0.0)
    sizes = []
    for turn in range(6):
        photograph(photos / "photo_0.jpg", 100 + turn)
        index_source(models, photos, out)
        sizes.append(sum(1 for file in out.rglob("*") if file.is_file()))
    assert max(sizes[2:]) <= sizes[1] + 5


def test_another_matcher_is_refused_with_the_command_that_rebuilds(models, photos, indexed, write_run, tmp_path):
    other = write_run(tmp_path / "other", seed=1)
    with pytest.raises(UserError) as refused:
        index_source(Models.load(other), photos, indexed)
    assert f'"calligram index {other} {photos} --out {indexed} --rebuild"' in str(refused.value)


def test_a_command_that_is_suggested_can_be_pasted(models, photos, write_run, tmp_path):
    other, out = write_run(tmp_path / "my $HOME run", seed=1), tmp_path / "the 'library'"
    index_source(models, photos, out)
    with pytest.raises(UserError) as refused:
        index_source(Models.load(other), photos, out)
    suggested = str(refused.value).split('"')[1::2]
    told = shlex.split('"'.join(suggested))
    assert told == ["calligram", "index", str(other), str(photos), "--out", str(out), "--rebuild"]


def test_a_library_is_rebuilt_behind_the_back_of_its_readers(
    models, photos, indexed, write_run, tmp_path, photograph, monkeypatch
):
    photograph(tmp_path / "more" / "a.jpg", 70)
    index_source(models, tmp_path / "more", indexed)
    other = Models.load(write_run(tmp_path / "other", seed=1, dim=12))
    before, ids = Library.open(indexed), contents(indexed)
    # Cut short in the middle, it goes on where it was, and until it is done the old library serves.
    take = indexing.Indexing.run
    monkeypatch.setattr(
        indexing.Indexing,
        "run",
        lambda self, **k: (
            (_ for _ in ()).throw(KeyboardInterrupt) if "more" in str(self.source.root) else take(self, **k)
        ),
    )
    with pytest.raises(KeyboardInterrupt):
        index_source(other, tmp_path / "more", indexed, rebuild=True)
    assert (indexed / REBUILT).is_file()
    assert Library.open(indexed).manifest.dim == 8
    monkeypatch.setattr(indexing.Indexing, "run", take)
    report = index_source(other, tmp_path / "more", indexed, rebuild=True)
    assert report.counts["unchanged"] == 12
    assert report.counts["added"] == 1
    after = before.refreshed()
    assert after.manifest.dim == after.images.dim == 12
    assert {path: id for path, (id, _) in contents(indexed).items()} == {p: id for p, (id, _) in ids.items()}
    assert done(index_source(other, photos, indexed)) == {}
    assert before.thumbnail(before.sample(1)[0])  # also after another run: a reader may take its time
    monkeypatch.setattr(preparing, "GRACE", 0.0)
    assert done(index_source(other, photos, indexed)) == {}
    assert not (indexed / "1").exists()


def test_shards_are_taken_in_without_encoding_again(models, photos, indexed, tmp_path, monkeypatch):
    out = tmp_path / "sharded"
    counts = [stage_source(models, photos, out, Shard(number, 3)) for number in (1, 2, 3)]
    assert sum(counts) == 12
    assert stage_source(models, photos, out, Shard(2, 3)) == 0
    with pytest.raises(UserError, match="is not a library"):
        Library.open(out)

    def never(*_, **__):
        raise AssertionError("encoded again")

    monkeypatch.setattr(indexing, "make_worker", never)
    report = index_source(models, photos, out)
    assert done(report) == {"added": 12}
    assert same(contents(out), contents(indexed))
    assert not list((out / "staging").iterdir())


def test_a_run_without_shard_encodes_what_the_shards_did_not(models, photos, indexed, tmp_path, photograph):
    out = tmp_path / "sharded"
    stage_source(models, photos, out, Shard(1, 2))
    photograph(photos / "late.jpg", 90)
    index_source(models, photos, out)
    index_source(models, photos, indexed)
    assert same(contents(out), contents(indexed))


def test_shards_of_another_matcher_are_not_taken(models, photos, indexed, tmp_path, write_run):
    out = tmp_path / "sharded"
    stage_source(Models.load(write_run(tmp_path / "other", seed=1)), photos, out, Shard(1, 1))
    index_source(models, photos, out)
    assert same(contents(out), contents(indexed))


def test_a_library_is_rebuilt_from_shards(models, photos, indexed, tmp_path, write_run, monkeypatch):
    other = Models.load(write_run(tmp_path / "other", seed=1, dim=12))
    with pytest.raises(UserError, match="--rebuild"):
        stage_source(other, photos, indexed, Shard(1, 2))
    counts = [stage_source(other, photos, indexed, Shard(number, 2), rebuild=True) for number in (1, 2)]
    assert sum(counts) == 12
    ids = {path: id for path, (id, _) in contents(indexed).items()}

    def never(*_, **__):
        raise AssertionError("encoded again")

    monkeypatch.setattr(indexing, "make_worker", never)
    assert done(index_source(other, photos, indexed, rebuild=True)) == {"added": 12}
    assert Library.open(indexed).images.dim == 12
    assert {path: id for path, (id, _) in contents(indexed).items()} == ids


def test_a_rebuild_misses_a_source_that_is_not_there(models, photos, indexed, tmp_path, photograph):
    photograph(tmp_path / "a disk" / "a.jpg", 70)
    index_source(models, tmp_path / "a disk", indexed)
    (tmp_path / "a disk").rename(tmp_path / "elsewhere")
    before = contents(indexed)
    with pytest.raises(UserError, match=r"also holds pictures of .*a disk, which cannot be opened") as refused:
        index_source(models, photos, indexed, rebuild=True)
    assert f"calligram forget {indexed} '{tmp_path / 'a disk'}'" in str(refused.value)
    assert not (indexed / REBUILT).exists()
    assert same(contents(indexed), before)
    assert forget(indexed, [str(tmp_path / "a disk")]) == 1  # as it was told to
    assert done(index_source(models, photos, indexed, rebuild=True)) == {"added": 12}


def test_a_shard_that_is_being_worked_on_is_waited_for(models, photos, tmp_path):
    out = tmp_path / "sharded"
    stage_source(models, photos, out, Shard(1, 1))
    (folder,) = (out / "staging").glob("*/1-of-1")
    with locked(folder, "shard"), pytest.raises(UserError, match=r"shard 1-of-1 .* is still being worked on"):
        index_source(models, photos, out)


@pytest.mark.parametrize("text", ["0/4", "5/4", "3", "a/b", "3/16/2"])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="--shard takes a number and a count such as 3/16"):
        Shard.parse(text)


def test_a_folder_of_other_things_is_not_made_a_library(models, photos, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x")
    with pytest.raises(UserError, match=r"is not a library \(it has chapter.tex\)"):
        index_source(models, photos, tmp_path / "thesis")
    assert os.listdir(tmp_path / "thesis") == ["chapter.tex"]


def test_the_library_may_lie_within_its_source(models, photos):
    index_source(models, photos, photos / "library")
    assert done(index_source(models, photos, photos / "library")) == {}


def test_an_empty_folder_makes_an_empty_library(models, tmp_path):
    (tmp_path / "none").mkdir()
    report = index_source(models, tmp_path / "none", tmp_path / "library")
    assert report.library["items"] == 0
    library = Library.open(tmp_path / "library")
    assert library.full_text("dog", 3) == []
    assert library.sample(3) == []
    assert preparing.MANIFEST in os.listdir(tmp_path / "library")
