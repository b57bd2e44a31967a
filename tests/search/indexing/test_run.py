"""Libraries that follow their sources: what is new, changed, renamed, gone, broken, twice there."""

from __future__ import annotations

import dataclasses
import os
import shutil

import numpy as np
import pytest
import torch

from calligram.errors import UserError
from calligram.files import lock_folder
from calligram.picture_formats import PICTURE_FORMATS
from calligram.search.indexing import run, writer
from calligram.search.indexing.encode import ImageEncoder, PictureEncoder
from calligram.search.indexing.run import index_source
from calligram.search.indexing.sources import open_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers


def test_every_picture_becomes_an_item_with_the_vector_the_matcher_gives(models, photos, indexed, contents):
    from PIL import Image

    found = contents(indexed)
    assert set(found) == {p.relative_to(photos).as_posix() for p in photos.rglob("*.jpg")}
    images = models.matcher.inputs.images
    for path in ("photo_0.jpg", "trip/photo_5.jpg"):
        given = images.finish(images.images([Image.open(photos / path).convert("RGB")]))
        vector = models.matcher.matcher.encode_images(given).vectors[0].detach().numpy()
        np.testing.assert_allclose(found[path][1], vector / np.linalg.norm(vector), atol=1e-3)


def test_nothing_changed_means_nothing_written(models, photos, indexed, done):
    before = (indexed / "library.json").stat().st_mtime_ns
    report = index_source(models, photos, indexed)
    assert report.counts["unchanged"] == 12
    assert done(report) == {}
    assert (indexed / "library.json").stat().st_mtime_ns == before


def test_a_second_run_applies_each_kind_of_change(models, photos, indexed, photograph, contents, done):
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


def test_unchanged_contents_are_not_encoded_again(models, photos, indexed, monkeypatch, contents, done):
    def never(*_, **__):
        raise AssertionError("encoded again")

    before = contents(indexed)
    (photos / "photo_6.jpg").rename(photos / "again.jpg")
    shutil.copy(photos / "photo_0.jpg", photos / "copy.jpg")
    os.utime(photos / "photo_3.jpg", (1, 1))
    monkeypatch.setattr("calligram.search.indexing.encode.ImageEncoder.encode", never)
    assert done(index_source(models, photos, indexed)) == {"copied": 1, "moved": 1, "touched": 1}
    after = contents(indexed)
    np.testing.assert_allclose(after["copy.jpg"][1], before["photo_0.jpg"][1], atol=1e-3)
    assert after["copy.jpg"][0] != after["photo_0.jpg"][0]


def test_many_batches_at_once_keep_their_order_and_leave_torch_as_it_was(models, photos):
    threads = torch.get_num_threads()
    source = open_source(photos)
    entries = source.scan().entries
    worker = dataclasses.replace(PictureEncoder.of(models, source, "cpu"), batch=2)
    rows = list(worker.run(entries, frozenset()))
    assert sorted(row["key"] for row in rows) == sorted(entry.key for entry in entries)
    fine = [row["key"] for row in rows if row.get("vector") is not None]
    assert len(fine) > 4
    assert fine == [entry.key for entry in entries if entry.key in set(fine)]
    assert torch.get_num_threads() == threads


def test_pictures_are_counted_when_they_are_encoded_and_not_when_they_are_read(models, photos, monkeypatch):
    encode, encoded, counted = ImageEncoder.encode, [], []

    def counting(self, prepared):
        found = encode(self, prepared)
        encoded.extend(prepared)
        return found

    def track(items, label, total=None):
        for row in items:
            counted.append(label)
            assert len(encoded) + unusable >= len(counted)
            yield row
        assert len(counted) == total

    monkeypatch.setattr(ImageEncoder, "encode", counting)
    source = open_source(photos)
    entries = source.scan().entries
    worker = dataclasses.replace(PictureEncoder.of(models, source, "cpu"), batch=2)
    unusable = sum("problem" in row for row in worker.run(entries, frozenset()))
    encoded.clear()
    assert len(list(worker.run(entries, frozenset(), track))) == len(entries)
    assert counted == ["indexing pictures"] * len(entries)


def test_a_matcher_that_fails_stops_the_run_and_leaves_torch_as_it_was(models, photos, monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr("calligram.search.indexing.encode.ImageEncoder.encode", lambda *_: 1 / 0)
    source = open_source(photos)
    with pytest.raises(ZeroDivisionError):
        list(PictureEncoder.of(models, source, "cpu").run(source.scan().entries, frozenset()))
    assert torch.get_num_threads() == threads


def test_two_files_with_one_content_are_two_items_from_the_start(models, photos, tmp_path, contents):
    shutil.copy(photos / "photo_0.jpg", photos / "copy.jpg")
    index_source(models, photos, tmp_path / "library")
    found = contents(tmp_path / "library")
    assert len(found) == 13
    assert found["copy.jpg"][1] == found["photo_0.jpg"][1]
    (photos / "photo_0.jpg").unlink()
    index_source(models, photos, tmp_path / "library")
    assert set(contents(tmp_path / "library")) == set(found) - {"photo_0.jpg"}


def test_files_that_exchange_their_contents_are_followed(models, photos, indexed, contents, done):
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
    models, photos, indexed, photograph, monkeypatch, contents
):
    # Every picture is committed by itself: the changed one is, before the copy of what it was is looked at.
    monkeypatch.setattr(run, "COMMIT_ROWS", 1)
    monkeypatch.setattr("calligram.search.indexing.encode.BATCH_PICTURES", 1)
    before = contents(indexed)
    shutil.copy(photos / "photo_0.jpg", photos / "zzz.jpg")
    photograph(photos / "photo_0.jpg", 50)
    report = index_source(models, photos, indexed)
    assert report.counts["changed"] == 1
    assert report.counts["added"] + report.counts["copied"] == 1
    np.testing.assert_allclose(contents(indexed)["zzz.jpg"][1], before["photo_0.jpg"][1], atol=1e-3)


def test_an_item_that_was_gone_returns_unchanged(models, photos, indexed, tmp_path, contents, done):
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


def test_bad_files_are_listed_and_tried_again_only_when_they_change(models, photos, indexed, photograph, done):
    (photos / "broken.jpg").write_bytes(b"no picture")
    (photos / "empty.png").write_bytes(b"")
    report = index_source(models, photos, indexed)
    assert done(report) == {"problem": 2}
    assert Library.open(indexed).problems() == [
        (str(photos / "broken.jpg"), f"not a picture in a known format ({', '.join(PICTURE_FORMATS)})"),
        (str(photos / "empty.png"), "the file is empty"),
    ]
    report = index_source(models, photos, indexed)
    assert (report.counts["still bad"], done(report)) == (2, {})
    photograph(photos / "broken.jpg", 80)
    (photos / "empty.png").unlink()
    assert done(index_source(models, photos, indexed)) == {"added": 1, "solved": 1}
    assert Library.open(indexed).problems() == []


def test_a_picture_that_breaks_is_no_longer_found(models, photos, indexed, done):
    (photos / "photo_0.jpg").write_bytes(b"broken now")
    report = index_source(models, photos, indexed)
    assert done(report) == {"problem": 1}
    assert len(Library.open(indexed).images) == report.library["items"] == 11


def test_a_source_that_is_not_there_changes_nothing(models, photos, indexed, contents):
    with pytest.raises(UserError, match="is not a folder; SOURCE is a folder of pictures or a collection"):
        index_source(models, photos / "nowhere", indexed)
    assert len(contents(indexed)) == 12


def test_a_second_writer_gets_an_error_that_names_the_first(models, photos, indexed):
    with lock_folder(indexed, "library"), pytest.raises(UserError, match=r"is being written to by process \d+"):
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
    monkeypatch.setattr(writer, "VERSION_GRACE_SECONDS", 0.0)
    sizes = []
    for turn in range(6):
        photograph(photos / "photo_0.jpg", 100 + turn)
        index_source(models, photos, out)
        sizes.append(sum(1 for file in out.rglob("*") if file.is_file()))
    assert max(sizes[2:]) <= sizes[1] + 5


def test_a_folder_of_other_things_is_not_made_a_library(models, photos, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x")
    with pytest.raises(UserError, match=r"is not a library \(it has chapter.tex\)"):
        index_source(models, photos, tmp_path / "thesis")
    assert os.listdir(tmp_path / "thesis") == ["chapter.tex"]


def test_the_library_may_lie_within_its_source(models, photos, done):
    index_source(models, photos, photos / "library")
    assert done(index_source(models, photos, photos / "library")) == {}


def test_an_empty_folder_makes_an_empty_library(models, tmp_path):
    (tmp_path / "none").mkdir()
    report = index_source(models, tmp_path / "none", tmp_path / "library")
    assert report.library["items"] == 0
    library = Library.open(tmp_path / "library")
    assert library.full_text("dog", 3) == []
    assert library.sample(3) == []
    assert run.MANIFEST in os.listdir(tmp_path / "library")


def test_a_table_of_captions_that_is_not_read_causes_a_warning(small_run, tmp_path, caplog):
    from PIL import Image

    (tmp_path / "photos").mkdir()
    Image.new("RGB", (20, 20), "red").save(tmp_path / "photos" / "one.png")
    (tmp_path / "photos" / "list.csv").write_text("a,b\n")
    index_source(LibraryMatchers.load(small_run), tmp_path / "photos", tmp_path / "library")
    assert "is not read" not in caplog.text
    (tmp_path / "photos" / "captions.csv").write_text("file,caption\none.png,a red square\n")
    index_source(LibraryMatchers.load(small_run), tmp_path / "photos", tmp_path / "library")
    assert "captions.csv is not read: index reads only the pictures" in caplog.text
