"""Libraries of collections: captions, splits and columns, pictures within shards, stored features."""

from __future__ import annotations

import json
import shutil
import tarfile

import numpy as np
import pytest
import torch

from calligram.data.collection import Collection
from calligram.data.draft import TarMember
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.models.catalog import INPUTS_FOLDER
from calligram.models.layers.towers import ImageArchitecture
from calligram.search.filters.parser import parse
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers


@pytest.fixture(scope="module")
def of_tiny(models, tiny, tmp_path_factory):
    """A library of the tiny collection."""
    out = tmp_path_factory.mktemp("of_tiny") / "library"
    index_source(models, tiny.folder, out)
    return Library.open(out)


def test_words_of_names_and_captions_are_found_whatever_is_asked(of_tiny):
    found = of_tiny.full_text("snow", 10)
    assert len(found) == 3
    assert all("snow" in of_tiny.item(f.id).captions for f in found)
    assert of_tiny.full_text("train", 3)[0].score > 0
    assert len(of_tiny.full_text("red warm", 50)) == 6
    assert len(of_tiny.full_text("snow", 10, parse("split = 'dev'", of_tiny.kinds))) == 1
    assert len(of_tiny.full_text("disc", 7, parse("n < 4", of_tiny.kinds))) == 7
    for odd in ("", "  ", '"(+-*', "a AND", "日本 語", "'; DROP", "x" * 5000, "\x00", 'snow" OR (', "~~ {}[]:^"):
        assert isinstance(of_tiny.full_text(odd, 3), list)


def test_a_collection_brings_captions_splits_and_every_column(of_tiny, tiny, by_path):
    assert len(of_tiny) == 18
    assert len(of_tiny.captions) == of_tiny.manifest.counts["captions"] == 42
    item = of_tiny.item(by_path(of_tiny)["train-3"])
    assert item.captions == ("a yellow disc", "the round thing is yellow", "a warm colour")
    assert item.metadata["split"] == "train"
    assert item.metadata["n"] == 3
    assert item.metadata["identity"] == 1
    assert item.path is not None
    assert item.path.is_file()
    facets = of_tiny.stats()["facets"]
    assert facets["split"] == {"train": 6, "dev": 6, "test": 6}


def test_a_caption_is_found_by_its_own_vector_and_knows_its_items(of_tiny, models):
    stored = models.matcher
    with torch.no_grad():
        vector = stored.matcher.encode_texts(*stored.inputs.texts.texts(["a warm colour"])).vectors.numpy()
    found = of_tiny.captions.search(vector, 3)[0]
    texts = [of_tiny.caption(f.id) for f in found]
    assert {c.text for c in texts} == {"a warm colour"}
    assert {len(c.items) for c in texts} == {2}
    one = of_tiny.captions.search(vector, 50, parse("split = 'test'", of_tiny.kinds))[0]
    assert len(one) == 14
    with pytest.raises(UserError, match="has no caption 'x'"):
        of_tiny.caption("x")


def test_captions_and_columns_follow_the_collection(models, tiny_draft, tmp_path, by_path):
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    write_draft(draft, tmp_path / "collection")
    out = tmp_path / "library"
    index_source(models, tmp_path / "collection", out)
    before = by_path(Library.open(out))
    again = tiny_draft(tmp_path / "pictures")
    again.captions[0].text = "a crimson disc"
    again.captions.pop()
    again.images[1].metadata["n"] = 77
    shutil.rmtree(tmp_path / "collection")
    write_draft(again, tmp_path / "collection")
    report = index_source(models, tmp_path / "collection", out)
    assert (report.counts["captions"], report.counts["captions removed"], report.counts["added"]) == (1, 1, 0)
    library = Library.open(out)
    assert by_path(library) == before
    assert library.item(before["train-0"]).captions[0] == "a crimson disc"
    assert library.full_text("crimson", 3)[0].id == before["train-0"]
    query = np.ones((1, 8), dtype=np.float32)
    assert [f.id for f in library.images.search(query, 5, parse("n = 77", library.kinds))[0]] == [before["train-1"]]
    assert len(library.captions.search(query, 5, parse("n = 77", library.kinds))[0]) == 2


def test_pictures_within_tar_shards_are_read_at_their_place(models, tiny_draft, tmp_path, by_path):
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        for image in draft.images:
            tar.add(image.picture.path, image.id + ".png")
    with tarfile.open(tmp_path / "all.tar") as tar:
        places = {
            m.name.removesuffix(".png"): TarMember(tmp_path / "all.tar", m.name, m.offset_data, m.size) for m in tar
        }
    for image in draft.images:
        image.picture = places[image.id]
    collection = write_draft(draft, tmp_path / "collection")
    index_source(models, collection.folder, tmp_path / "library")
    library = Library.open(tmp_path / "library")
    for row, id in enumerate(collection.table("images").column("id").to_pylist()):
        found = by_path(library)[id]
        assert library.picture(found) == collection.pictures.read(row)
        assert library.item(found).path is None
        assert library.thumbnail(found)


def test_a_matcher_of_stored_features_takes_a_collection_and_no_files(
    stored_tiny, photos, small_run, tmp_path, write_run, by_path
):
    run = write_run(tmp_path / "run", image=ImageArchitecture("features", feature_dim=4))
    content = json.loads((run / INPUTS_FOLDER / "inputs.json").read_text())
    content["images"] = {"kind": "stored", "name": "colour"}
    (run / INPUTS_FOLDER / "inputs.json").write_text(json.dumps(content))
    models = LibraryMatchers.load(run)
    with pytest.raises(UserError, match="reads the stored features 'colour', and picture files have none"):
        index_source(models, photos, tmp_path / "refused")
    report = index_source(models, stored_tiny.folder, tmp_path / "library")
    assert report.counts["added"] == 18
    library = Library.open(tmp_path / "library")
    id = by_path(library)["dev-2"]
    row = stored_tiny.table("images").column("id").to_pylist().index("dev-2")
    given = torch.from_numpy(stored_tiny.features["colour"].take(np.array([row])))
    with torch.no_grad():
        vector = models.matcher.matcher.encode_images(given).vectors[0].numpy()
    np.testing.assert_allclose(library.images.vectors([id])[0], vector / np.linalg.norm(vector), atol=1e-3)
    assert library.thumbnail(id)
    assert index_source(models, stored_tiny.folder, tmp_path / "library").counts["unchanged"] == 18


def test_the_collection_itself_can_still_be_opened(of_tiny, tiny):
    assert Collection.open(tiny.folder).fingerprint == tiny.fingerprint
