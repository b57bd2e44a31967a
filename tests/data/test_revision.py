from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

from calligram.data import revision
from calligram.data.collection import Collection
from calligram.data.revision import (
    NewRegions,
    images_with_proposals,
    proposal_record,
    replace_manifest,
    store_regions,
    with_checksums,
)
from calligram.data.sparse import Sparsity, sparse_view
from calligram.data.write_tables import BOX_COLUMNS, REGION_TYPES
from calligram.errors import UserError


@pytest.fixture
def copy(tiny, tmp_path):
    shutil.copytree(tiny.folder, tmp_path / "copy")
    return tmp_path / "copy"


def found(images, each, source="grid", settings=None, features=None):
    """``each`` regions in every one of ``images``, the x0 of each being its number."""
    image = np.repeat(images, each)
    columns = {name: [None] * len(image) for name in REGION_TYPES}
    columns |= {axis: np.arange(len(image), dtype=np.float32) for axis in BOX_COLUMNS}
    columns |= {"id": [f"{source}/{i}" for i in range(len(image))], "image": image, "source": [source] * len(image)}
    rows = pa.table({name: pa.array(columns[name], kind) for name, kind in REGION_TYPES.items()})
    return NewRegions(source, settings or {"top": each}, rows, np.array(images), np.full(len(images), each), features)


def phrases(collection):
    """(text, region id) of every grounding."""
    texts, ids = collection.column("phrases", "text"), collection.column("regions", "id")
    pairs = zip(collection.numbers("groundings", "phrase"), collection.numbers("groundings", "region"), strict=True)
    return sorted((texts[p], ids[r]) for p, r in pairs)


def test_new_regions_are_appended_and_nothing_else_changes(copy):
    before = Collection.open(copy)
    after = store_regions(copy, found([0, 2], 3))
    assert len(after.table("regions")) == len(before.table("regions")) + 6
    assert after.column("regions", "id")[-1] == "grid/5"
    assert phrases(after) == phrases(before)
    assert images_with_proposals(after, "grid").tolist() == [0, 2]
    assert after.manifest["counts"]["regions"] == len(after.table("regions"))
    assert proposal_record(after, "grid")["images"] == 2


def test_the_same_settings_add_and_other_settings_replace(copy):
    store_regions(copy, found([0, 2], 3))
    store_regions(copy, found([4], 3, source="other"))
    more = store_regions(copy, found([5], 3))
    assert images_with_proposals(more, "grid").tolist() == [0, 2, 5]
    before = phrases(more)
    replaced = store_regions(copy, found([1], 2, settings={"top": 2}))
    assert images_with_proposals(replaced, "grid").tolist() == [1]
    assert images_with_proposals(replaced, "other").tolist() == [4]
    assert replaced.column("regions", "source").count("grid") == 2
    assert replaced.column("regions", "source").count("other") == 3
    assert phrases(replaced) == before


def test_groundings_are_renumbered_with_their_regions(copy):
    """Phrases grounded in a source that stands behind the one that is replaced."""
    store_regions(copy, found([0], 2))
    store_regions(copy, found([0], 2, source="other"))
    rows = Collection.open(copy).column("regions", "id")
    links = pa.table(
        {"phrase": pa.array([0, 1], pa.int32()), "region": pa.array([rows.index("other/1")] * 2, pa.int32())}
    )
    pa.parquet.write_table(links, copy / "groundings.parquet")
    replace_manifest(copy, with_checksums(copy, Collection.open(copy).manifest, ["groundings.parquet"]))
    after = store_regions(copy, found([3], 1, settings={"top": 1}))
    assert [id for _, id in phrases(after)] == ["other/1", "other/1"]


def test_features_are_stacked_and_replaced_with_their_regions(copy, tmp_path):
    def features(images, value):
        file = tmp_path / "made.npy"
        np.save(file, np.full((images, 3, 4), value, dtype=np.float16))
        return file

    store_regions(copy, found([0, 2], 3, features=features(2, 1)))
    after = store_regions(copy, found([5], 3, features=features(1, 2)))
    assert after.features["grid"].take(np.array([5, 0]))[:, 0, 0].tolist() == [2, 1]
    assert len(list((copy / "features").glob("grid.*.npy"))) == 2
    with pytest.raises(UserError, match="1 of 1 images have no stored features"):
        after.features["grid"].take(np.array([1]))
    bare = store_regions(copy, found([1], 3, settings={"other": 1}))
    assert "grid" not in bare.features
    assert "features.grid" not in bare.table("images").column_names
    assert not list((copy / "features").glob("grid.*.npy"))


def test_a_writer_that_dies_before_the_rename_changes_nothing(copy, monkeypatch):
    before = Collection.open(copy)

    def dies(folder, manifest):
        raise KeyboardInterrupt

    monkeypatch.setattr(revision, "replace_manifest", dies)
    with pytest.raises(KeyboardInterrupt):
        store_regions(copy, found([0], 3))
    again = Collection.open(copy)
    assert again.manifest == before.manifest
    assert again.table("regions").equals(before.table("regions"))
    monkeypatch.undo()
    assert images_with_proposals(store_regions(copy, found([0], 3)), "grid").tolist() == [0]


def test_older_tables_are_removed_and_the_previous_ones_stay_for_open_collections(copy):
    for settings in ({"top": 1}, {"top": 2}, {"top": 3}, {"top": 4}):
        opened = Collection.open(copy)
        store_regions(copy, found([0, 1], 3, settings=settings))
        assert len(opened.table("regions")) in (18, 24)
    assert {f.name for f in copy.glob("regions*.parquet")} == {"regions.3.parquet", "regions.4.parquet"}
    assert json.loads((copy / "collection.json").read_text())["tables"]["regions"] == "regions.4.parquet"
    assert (copy / "captions.parquet").is_file()


def test_a_sparse_view_of_an_open_collection_does_not_need_tables_that_two_writers_replaced(copy, tmp_path):
    opened = Collection.open(copy)
    images = opened.column("images", "id")
    for source in ("grid", "other"):
        np.save(tmp_path / "made.npy", np.zeros((1, 3, 4), dtype=np.float16))
        store_regions(copy, found([0], 3, source=source, features=tmp_path / "made.npy"))
    assert not (copy / "images.parquet").is_file()
    assert sparse_view(opened, Sparsity(0.5, 1)).column("images", "id") == images


def test_regions_that_came_with_the_collection_are_not_replaced(copy, stored_tiny):
    with pytest.raises(UserError, match="'truth' came with the collection"):
        store_regions(copy, found([0], 1, source="truth"))
    with pytest.raises(UserError, match="features 'colour' came with the collection"):
        proposal_record(stored_tiny, "colour")
