"""What is forgotten is gone from every version, and stays away."""

from __future__ import annotations

import numpy as np
import pytest

from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.search.indexing.forget import forget_items
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library


def test_forgotten_pictures_are_left_out_until_they_change(models, photos, indexed, photograph, by_path):
    library = Library.open(indexed)
    ids = by_path(library)
    assert forget_items(indexed, [ids["photo_0.jpg"], "trip/photo_1.jpg", str(photos / "trip" / "photo_2.jpg")]) == 3
    assert forget_items(indexed, [], where="year = 2014") == 1
    library = Library.open(indexed)
    assert len(library) == len(library.images) == 8
    for name in ("photo_0.jpg", "trip/photo_4.jpg"):
        for ask in (library.item, library.thumbnail, library.picture):
            with pytest.raises(UserError, match="has no item"):
                ask(ids[name])
    assert index_source(models, photos, indexed).counts["forgotten"] == 4
    (photos / "photo_0.jpg").rename(photos / "other name.jpg")
    photograph(photos / "trip" / "photo_1.jpg", 99)
    report = index_source(models, photos, indexed)
    assert (report.counts["forgotten"], report.counts["added"]) == (3, 1)
    report = index_source(models, photos, indexed, again=True)
    assert report.counts["added"] == 3
    assert len(Library.open(indexed)) == 12


def test_forgotten_items_cannot_be_read_in_any_version(models, tiny_draft, tmp_path, by_path):
    import lancedb

    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    draft.captions[0].text = "Kilimanjaro"
    write_draft(draft, tmp_path / "collection")
    out = tmp_path / "library"
    index_source(models, tmp_path / "collection", out)
    before = Library.open(out)
    ids = by_path(before)
    assert before.full_text("kilimanjaro", 3)
    forget_items(out, [ids["train-0"]])
    after = Library.open(out)
    assert not after.full_text("kilimanjaro", 3)
    assert len(after.captions) == after.manifest.counts["captions"] == 40
    texts = [after.caption(f.id) for f in after.captions.search(np.ones((1, 8), dtype=np.float32), 60)[0]]
    assert "Kilimanjaro" not in {caption.text for caption in texts}
    assert [c.items for c in texts if c.text == "a warm colour" and len(c.items) == 1] == [(ids["train-3"],)]
    for folder in (out / "1" / "tables", out / "1" / "index"):
        database = lancedb.connect(str(folder))
        for name in database.table_names():
            table = database.open_table(name)
            assert [v["version"] for v in table.list_versions()] == [table.version], name


def test_items_of_a_collection_are_forgotten_by_the_paths_of_their_pictures(models, tiny_draft, tmp_path, by_path):
    (tmp_path / "pictures").mkdir()
    write_draft(tiny_draft(tmp_path / "pictures"), tmp_path / "collection")
    index_source(models, tmp_path / "collection", tmp_path / "library")
    library, said = Library.open(tmp_path / "library"), []
    ids = by_path(library)
    path = library.item(ids["train-0"]).path
    assert forget_items(tmp_path / "library", [str(path)], report=said.append, dry_run=True) == 1
    assert said == [str(path)]
    assert path.is_file()
    assert forget_items(tmp_path / "library", [str(path.parent)]) == len(ids)


def test_gone_items_and_folders_can_be_forgotten(models, photos, indexed):
    (photos / "photo_0.jpg").unlink()
    index_source(models, photos, indexed)
    assert forget_items(indexed, [], gone=True) == 1
    assert forget_items(indexed, [str(photos / "trip")]) == 8
    assert len(list(Library.open(indexed).rows())) == 3


def test_forgetting_an_unknown_item_is_an_error_and_deletes_nothing(indexed):
    with pytest.raises(UserError, match="no item with the id or path 'nothing'; nothing was forgotten"):
        forget_items(indexed, ["photo_0.jpg", "nothing"])
    with pytest.raises(UserError, match="nothing to forget is given"):
        forget_items(indexed, [])
    with pytest.raises(UserError, match="yaer"):
        forget_items(indexed, [], where="yaer = 3")
    assert len(Library.open(indexed)) == 12
