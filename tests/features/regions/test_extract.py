"""Extraction for a collection: incremental, with replacement, and resumed after a kill."""

from __future__ import annotations

import shutil
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from calligram.data.collection import Collection
from calligram.data.revision import images_with_proposals
from calligram.errors import UserError
from calligram.features.images.stored_input import StoredInput, real_parts
from calligram.features.regions import extract
from calligram.features.regions.extract import ExtractionTask, add_regions, finished_images, scratch_folder
from calligram.features.regions.opencv_proposals import EdgeBoxes
from calligram.features.regions.proposers import SlidingWindows
from calligram.features.regions.region_features import RegionPooling, roi_pool
from calligram.features.regions.stored_boxes import StoredBoxes


class Counting:
    """Sliding windows that count their calls."""

    def __init__(self, most=5):
        self.windows, self.calls = SlidingWindows(most), 0
        self.settings = self.windows.settings

    def __call__(self, image):
        self.calls += 1
        return self.windows(image)


@pytest.fixture
def copy(tiny, tmp_path):
    shutil.copytree(tiny.folder, tmp_path / "copy")
    return Collection.open(tmp_path / "copy")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    from transformers import ResNetConfig, ResNetModel

    folder = tmp_path_factory.mktemp("backbone") / "tiny"
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic")
    ResNetModel(config).save_pretrained(folder)
    return str(folder)


def test_only_images_without_these_regions_are_processed(copy):
    first = Counting()
    added = add_regions(copy, ExtractionTask(first, "grid", 5), "test")
    assert (added.images, added.regions, added.earlier, first.calls) == (6, 30, 0, 6)
    again = Counting()
    assert add_regions(added.collection, ExtractionTask(again, "grid", 5), "test").earlier == 6
    assert again.calls == 0
    rest = Counting()
    added = add_regions(added.collection, ExtractionTask(rest, "grid", 5))
    assert (added.images, added.earlier, rest.calls) == (12, 6, 12)
    assert len(images_with_proposals(added.collection, "grid")) == 18


def test_regions_with_other_settings_are_replaced(copy):
    after = add_regions(copy, ExtractionTask(Counting(), "grid", 5)).collection
    added = add_regions(after, ExtractionTask(Counting(), "grid", 3), "dev")
    assert (added.images, added.earlier) == (6, 0)
    assert added.collection.column("regions", "source").count("grid") == 18
    assert added.collection.column("regions", "source").count("truth") == 18


def test_rows_contain_boxes_scores_and_attributes(copy):
    after = add_regions(copy, ExtractionTask(EdgeBoxes(4), "edges", 4), "train").collection
    rows = [r for r in after.table("regions").to_pylist() if r["source"] == "edges"]
    assert rows[0]["id"] == "train-0/edges/0"
    assert all(0 <= r["x0"] < r["x1"] <= 40 and 0 <= r["y0"] < r["y1"] <= 32 for r in rows)
    assert all(r["score"] > 0 and r["label"] is None for r in rows)
    words = {r["attribute"].split()[1] for r in rows if r["image"] == 0}
    assert "red" in words


def test_features_are_pooled_from_the_feature_map_of_the_backbone(copy, backbone):
    pooling = RegionPooling.load(backbone, 64)
    after = add_regions(copy, ExtractionTask(SlidingWindows(3), "grid", 5, pooling)).collection
    stored = after.features["grid"]
    assert stored.row_shape == (5, pooling.backbone.dim)
    row = 7
    image = after.pictures.open(row)
    with torch.no_grad():
        grid = pooling.backbone(pooling.pixels.finish(pooling.pixels.images([image]))).grid
    shares = SlidingWindows(3)(image).boxes / np.array([40, 32, 40, 32], dtype=np.float32)
    expected = roi_pool(grid, torch.from_numpy(shares)[None])[0]
    taken = torch.from_numpy(stored.take(np.array([row])))
    torch.testing.assert_close(taken[0, :3], expected, rtol=2e-3, atol=2e-3)
    assert (taken[0, 3:] == 0).all()
    rows = StoredInput("grid").load(after.sentences("test").visuals)
    assert real_parts(rows.take(np.arange(2))).tolist() == [[True] * 3 + [False] * 2] * 2


def test_unreadable_images_are_counted_and_tried_again(copy):
    path = copy.pictures.path(2)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(b"broken")
    added = add_regions(copy, ExtractionTask(Counting(), "grid", 5))
    assert added.images == 17
    assert len(added.bad) == 1
    assert "train-2" in added.bad[0]
    path.write_bytes(content)
    added = add_regions(added.collection, ExtractionTask(Counting(), "grid", 5))
    assert (added.images, added.bad) == (1, [])


def test_a_failure_keeps_finished_chunks(copy, monkeypatch):
    monkeypatch.setattr(extract, "CHUNK_IMAGES", 4)

    def one_thing(found):
        raise RuntimeError(found)

    class Failing(Counting):
        def __call__(self, image):
            if self.calls >= 14:
                one_thing("out of luck")
            return super().__call__(image)

    with pytest.raises(RuntimeError, match="out of luck"):
        add_regions(copy, ExtractionTask(Failing(), "grid", 5))
    assert not Collection.open(copy.folder).has("proposals")
    rest = Counting()
    added = add_regions(copy, ExtractionTask(rest, "grid", 5))
    assert added.images == 18
    assert 4 <= rest.calls < 18
    assert not list((copy.folder / ".regions").glob("grid@*"))


SLOW = """
import itertools, sys, time
from calligram.data.collection import Collection
from calligram.data.pictures import share_cores
from calligram.features.regions import extract
from calligram.features.regions.proposers import SlidingWindows

calls = itertools.count(1)

class Slow(SlidingWindows):
    def __call__(self, image):
        time.sleep(600 if next(calls) > 10 else 0)
        return super().__call__(image)

extract.CHUNK_IMAGES = 2
share_cores(10_000)  # one thread, so that images come in order
extract.add_regions(Collection.open(sys.argv[1]), extract.ExtractionTask(Slow(5), "grid", 5))
"""


def test_a_killed_run_continues_and_gives_the_same_result(copy, tmp_path, preloaded):
    shutil.copytree(copy.folder, tmp_path / "whole")
    deadline = time.monotonic() + 180
    with preloaded.start(SLOW, copy.folder) as process:
        while len(list((copy.folder / ".regions").glob("grid@*/*.npz"))) < 3 and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    assert not Collection.open(copy.folder).has("proposals")
    counting = Counting(5)
    resumed = add_regions(Collection.open(copy.folder), ExtractionTask(counting, "grid", 5)).collection
    assert 0 < counting.calls <= 12
    whole = add_regions(Collection.open(tmp_path / "whole"), ExtractionTask(Counting(5), "grid", 5)).collection
    assert resumed.table("regions").equals(whole.table("regions"))
    assert resumed.table("proposals").equals(whole.table("proposals"))


def test_a_run_that_died_after_storing_does_not_store_twice(copy, monkeypatch):
    task = ExtractionTask(Counting(), "grid", 5)
    monkeypatch.setattr(shutil, "rmtree", lambda *a, **k: None)
    after = add_regions(copy, task, "test").collection
    monkeypatch.undo()
    assert list((copy.folder / ".regions").glob("grid@*/*.npz"))
    again = add_regions(after, task)
    assert again.images == 12
    assert len(again.collection.table("regions")) == 18 + 18 * 5


def test_a_second_process_is_refused(copy):
    with (
        scratch_folder(copy.folder, "grid", "k"),
        pytest.raises(UserError, match=r"process .* is looking for the regions 'grid'"),
        scratch_folder(copy.folder, "grid", "k"),
    ):
        pass


def test_damaged_chunks_are_removed(tmp_path):
    (tmp_path / "000000.npz").write_bytes(b"PK nothing")
    assert len(finished_images(tmp_path, np.zeros(0, np.int64))) == 0
    assert not list(tmp_path.iterdir())


def test_features_that_are_added_later_equal_those_of_one_run(copy, backbone, tmp_path):
    whole = tmp_path / "whole"
    shutil.copytree(copy.folder, whole)
    method, pooling = EdgeBoxes(4), RegionPooling.load(backbone, 32)
    expected = add_regions(Collection.open(whole), ExtractionTask(method, "edges", 4, pooling), "train").collection
    boxes_only = add_regions(copy, ExtractionTask(method, "edges", 4), "train").collection
    stored = StoredBoxes.of_collection(boxes_only, "edges")
    added = add_regions(boxes_only, ExtractionTask(stored, "edges", stored.top, pooling))
    _assert_equal_regions(added.collection, expected)
    assert (
        added.collection.manifest["proposals"]["edges"]["settings"]
        == (expected.manifest["proposals"]["edges"]["settings"])
    )
    again = add_regions(added.collection, ExtractionTask(stored, "edges", stored.top, pooling))
    assert (again.images, again.earlier) == (0, added.images)


def _assert_equal_regions(found, expected):
    tables = [
        c.table("regions").filter(pc.equal(c.table("regions").column("source"), "edges")) for c in (found, expected)
    ]
    assert tables[0].sort_by("id").equals(tables[1].sort_by("id"))
    rows = images_with_proposals(expected, "edges")
    assert sorted(images_with_proposals(found, "edges")) == sorted(rows)
    for row in rows:
        assert np.array_equal(found.features["edges"].take(np.array([row])), expected.features["edges"].take([row]))


def test_boxes_move_to_another_machine_in_a_file(copy, backbone, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(copy.folder, other)
    there = add_regions(Collection.open(other), ExtractionTask(EdgeBoxes(4), "edges", 4), "train").collection
    StoredBoxes.of_collection(there, "edges").write(tmp_path / "boxes.parquet", there)
    stored = StoredBoxes.read(tmp_path / "boxes.parquet", copy)
    assert (stored.source, stored.top, stored.settings) == ("edges", 4, dict(EdgeBoxes(4).settings))
    pooling = RegionPooling.load(backbone, 32)
    added = add_regions(copy, ExtractionTask(stored, "edges", stored.top, pooling)).collection
    both = [StoredBoxes.of_collection(each, "edges") for each in (added, there)]
    assert np.array_equal(both[0].rows, both[1].rows)
    assert np.array_equal(both[0].counts, both[1].counts)
    assert np.abs(both[0].boxes - both[1].boxes).max() <= 1 / 32
    assert np.array_equal(both[0].scores, both[1].scores)
    assert set(added.features) == {"edges"}


def test_files_of_other_boxes_are_refused(copy, tmp_path):
    with pytest.raises(UserError, match="has no regions 'edges'"):
        StoredBoxes.of_collection(copy, "edges")
    (tmp_path / "text.parquet").write_text("no table")
    with pytest.raises(UserError, match="is not a readable Parquet file of boxes"):
        StoredBoxes.read(tmp_path / "text.parquet", copy)
    with pytest.raises(UserError, match="holds no boxes"):
        StoredBoxes.read(next(copy.folder.glob("images*.parquet")), copy)
    made = add_regions(copy, ExtractionTask(SlidingWindows(2), "grid", 2), "test").collection
    StoredBoxes.of_collection(made, "grid").write(tmp_path / "boxes.parquet", made)
    table = pq.read_table(tmp_path / "boxes.parquet")
    other_ids = pa.array([f"other-{i}" for i in range(6)])
    pq.write_table(table.set_column(0, "id", other_ids), tmp_path / "boxes.parquet")
    with pytest.raises(UserError, match=r"6 of 6 images of .* are not in"):
        StoredBoxes.read(tmp_path / "boxes.parquet", copy)
    pq.write_table(table.set_column(1, "width", pa.array([999] * 6)), tmp_path / "boxes.parquet")
    with pytest.raises(UserError, match="have other sizes"):
        StoredBoxes.read(tmp_path / "boxes.parquet", copy)
