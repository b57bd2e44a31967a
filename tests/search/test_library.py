"""What a library gives back: items, pictures, captions, parts, words; and what it refuses."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import unicodedata
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from calligram.data.collection import Collection
from calligram.data.draft import MemberAt
from calligram.data.writing import write_collection
from calligram.errors import UserError
from calligram.models import catalog
from calligram.models.matcher import Encoded, Matcher
from calligram.models.stored import BEST, INPUTS, MATCHER, load_matcher
from calligram.search import manifest
from calligram.search.forgetting import forget
from calligram.search.fusion import has_every_word
from calligram.search.indexing import index_source
from calligram.search.library import Library
from calligram.search.locator import Locator
from calligram.search.manifest import Model
from calligram.search.models import Models, load_recorded
from calligram.search.where import holds, parse


@pytest.fixture(scope="module")
def models(small_run):
    return Models.load(small_run)


@pytest.fixture
def folder(models, photos, tmp_path):
    index_source(models, photos, tmp_path / "library")
    return tmp_path / "library"


@pytest.fixture(scope="module")
def of_tiny(models, tiny, tmp_path_factory):
    """A library of the tiny collection."""
    out = tmp_path_factory.mktemp("of_tiny") / "library"
    index_source(models, tiny.folder, out)
    return Library.open(out)


def by_path(library: Library) -> dict[str, str]:
    return {row["path"]: row["id"] for row in library.rows()}


def test_an_item_says_what_the_file_says(folder, photos):
    library = Library.open(folder)
    item = library.item(by_path(library)["trip/photo_2.jpg"])
    assert item.path == photos / "trip" / "photo_2.jpg"
    assert (item.name, item.folder, item.width, item.height, item.captions) == ("photo_2.jpg", "trip", 48, 36, ())
    assert item.metadata == {
        **{"path": "trip/photo_2.jpg", "folder": "trip", "name": "photo_2.jpg", "source": str(photos)},
        **{"bytes": item.path.stat().st_size, "width": 48, "height": 36},
        **{"taken": "2012-05-01T12:30:00", "year": 2012, "camera": "Acme Box 2"},
    }
    assert set(item.metadata) <= set(library.kinds)


def test_pictures_and_thumbnails_come_by_id_only(folder, photos):
    library = Library.open(folder)
    id = by_path(library)["photo_0.jpg"]
    assert library.picture(id) == (photos / "photo_0.jpg").read_bytes()
    assert Image.open(io.BytesIO(library.thumbnail(id))).size == (48, 36)
    (photos / "photo_0.jpg").unlink()
    with pytest.raises(UserError, match="cannot be read: No such file"):
        library.picture(id)
    for ask in (library.item, library.picture, library.thumbnail):
        for unknown in ("nothing", "../../etc/passwd", "x' OR '1'='1", ""):
            with pytest.raises(UserError, match="the library has no item"):
                ask(unknown)


def test_items_come_in_the_order_asked_for_as_often_as_asked_for(folder):
    library = Library.open(folder)
    ids = library.sample(5)
    assert [item.id for item in library.items([*ids[::-1], ids[2]])] == [*ids[::-1], ids[2]]
    assert [item.id for item in library.known_items(["nothing", ids[0]])] == [ids[0]]


def test_conditions_hold_for_the_columns(folder):
    library = Library.open(folder)
    query = np.ones((1, 8), dtype=np.float32)
    for text, count in (("year >= 2014", 4), ("folder = 'trip' and camera is missing", 4), ("bytes > 1", 12)):
        found = library.images.search(query, 20, parse(text, library.kinds))[0]
        assert len(found) == count, text


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


@pytest.mark.parametrize("asked", ["NFC", "NFD"])
def test_an_accent_is_the_same_however_it_is_written(models, photograph, tmp_path, asked):
    for number, form in enumerate(("NFC", "NFD")):
        photograph(tmp_path / "photos" / form / unicodedata.normalize(form, "café_Zoë.jpg"), 20 + number)
    index_source(models, tmp_path / "photos", tmp_path / "library")
    library = Library.open(tmp_path / "library")
    name, word, part = (unicodedata.normalize(asked, text) for text in ("café_Zoë.jpg", "Zoë", "fé_"))
    both = set(library.sample(2))
    assert len(both) == 2
    vector = library.images.vectors(sorted(both)[:1])
    for text in (f"name = '{name}'", f"name in ('{name}')", f"name ~ '{part}'", f"path ~ '{part}'"):
        condition = parse(text, library.kinds)
        assert {hit.id for hit in library.images.search(vector, 5, condition)[0]} == both, text
        assert {row["id"] for row in library.rows() if holds(condition, row)} == both
    assert {found.id for found in library.full_text(word, 5)} == both
    assert all(has_every_word(word, (found.words,)) for found in library.full_text(word, 5))
    assert {Image.open(io.BytesIO(library.picture(id))).size for id in both} == {
        (48, 36)
    }  # the file is opened under its own name


def test_a_collection_brings_captions_splits_and_every_column(of_tiny, tiny):
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


def test_captions_and_columns_follow_the_collection(models, tiny_draft, tmp_path):
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    write_collection(draft, tmp_path / "collection")
    out = tmp_path / "library"
    index_source(models, tmp_path / "collection", out)
    before = by_path(Library.open(out))
    again = tiny_draft(tmp_path / "pictures")
    again.captions[0].text = "a crimson disc"
    again.captions.pop()
    again.images[1].metadata["n"] = 77
    import shutil

    shutil.rmtree(tmp_path / "collection")
    write_collection(again, tmp_path / "collection")
    report = index_source(models, tmp_path / "collection", out)
    assert (report.counts["captions"], report.counts["captions removed"], report.counts["added"]) == (1, 1, 0)
    library = Library.open(out)
    assert by_path(library) == before
    assert library.item(before["train-0"]).captions[0] == "a crimson disc"
    assert library.full_text("crimson", 3)[0].id == before["train-0"]
    query = np.ones((1, 8), dtype=np.float32)
    assert [f.id for f in library.images.search(query, 5, parse("n = 77", library.kinds))[0]] == [before["train-1"]]
    assert len(library.captions.search(query, 5, parse("n = 77", library.kinds))[0]) == 2


def test_pictures_within_tar_shards_are_read_at_their_place(models, tiny_draft, tmp_path):
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        for image in draft.images:
            tar.add(image.at.path, image.id + ".png")
    with tarfile.open(tmp_path / "all.tar") as tar:
        places = {
            m.name.removesuffix(".png"): MemberAt(tmp_path / "all.tar", m.name, m.offset_data, m.size) for m in tar
        }
    for image in draft.images:
        image.at = places[image.id]
    collection = write_collection(draft, tmp_path / "collection")
    index_source(models, collection.folder, tmp_path / "library")
    library = Library.open(tmp_path / "library")
    for row, id in enumerate(collection.table("images").column("id").to_pylist()):
        found = by_path(library)[id]
        assert library.picture(found) == collection.pictures.read(row)
        assert library.item(found).path is None
        assert library.thumbnail(found)


def test_a_matcher_of_stored_features_takes_a_collection_and_no_files(
    stored_tiny, photos, small_run, tmp_path, write_run
):
    run = write_run(tmp_path / "run", image="features", feature_dim=4)
    content = json.loads((run / INPUTS / "inputs.json").read_text())
    content["images"] = {"kind": "stored", "name": "colour"}
    (run / INPUTS / "inputs.json").write_text(json.dumps(content))
    models = Models.load(run)
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


@dataclass(frozen=True)
class CrossSettings:
    dim: int = 6


class Cross(Matcher):
    """Scores a pair by its best part: more than the vectors know."""

    def __init__(self, settings: CrossSettings) -> None:
        super().__init__()
        self.settings = settings
        self.parts = nn.Conv2d(3, settings.dim, 8, 8)
        self.words = nn.Embedding(64, settings.dim)

    def encode_images(self, images, mask=None):
        parts = self.parts(images).flatten(2).transpose(1, 2)
        real = torch.ones(parts.shape[:2], dtype=torch.bool)
        real[:, -1] = False
        return Encoded(parts.mean(1), parts, real)

    def encode_texts(self, texts, mask=None):
        words = self.words(texts)
        return Encoded(words.mean(1), words, mask)

    def score_pairs(self, images, texts):
        grid = torch.einsum("npd,nd->np", images.parts, texts.vectors)
        return grid.masked_fill(~images.mask, -torch.inf).amax(1)


@pytest.fixture
def cross_run(small_run, tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "MATCHERS", {**catalog.MATCHERS, "cross": catalog.Kind(Cross, CrossSettings)})
    import shutil

    folder = tmp_path / "cross"
    shutil.copytree(small_run, folder)
    torch.manual_seed(3)
    catalog.save(Cross(CrossSettings()), folder / MATCHER, folder / BEST)
    return folder


@pytest.mark.parametrize("alone", [False, True])
def test_the_parts_of_a_reranker_are_stored_in_half_precision(cross_run, small_run, photos, tmp_path, alone):
    models = Models.load(cross_run) if alone else Models.load(small_run, cross_run)
    index_source(models, photos, tmp_path / "library")
    library = Library.open(tmp_path / "library")
    assert library.manifest.reranker.source == str(cross_run)
    ids = library.sample(4)
    stored, pictures = load_matcher(cross_run), [Image.open(library.item(id).path).convert("RGB") for id in ids]
    images = stored.inputs.images
    with torch.no_grad():
        wanted = stored.matcher.encode_images(images.finish(images.images(pictures)))
        found = library.parts(ids)
        torch.testing.assert_close(found.vectors, wanted.vectors)
        torch.testing.assert_close(found.parts, wanted.parts, rtol=1e-3, atol=1e-3)
        assert torch.equal(found.mask, wanted.mask)
        texts = stored.matcher.encode_texts(*stored.inputs.texts.texts(["a red disc", "snow"]))
        ours, theirs = stored.matcher.score(found, texts), stored.matcher.score(wanted, texts)
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


def test_the_reranker_is_remembered_and_none_can_be_added_later(cross_run, small_run, photos, folder, tmp_path):
    index_source(Models.load(small_run, cross_run), photos, tmp_path / "both")
    index_source(Models.load(small_run, library=tmp_path / "both"), photos, tmp_path / "both")
    with pytest.raises(UserError, match=r"was made with no reranker, this is reranker .*--rebuild"):
        index_source(Models.load(small_run, cross_run), photos, folder)
    with pytest.raises(UserError, match="nothing to re-rank by; index it with --reranker RUN"):
        Library.open(folder).parts(Library.open(folder).sample(1))


def test_a_reranker_that_is_gone_or_has_changed_is_named_with_what_to_do(cross_run, small_run, photos, tmp_path):
    second, out = tmp_path / "second", tmp_path / "both"
    shutil.copytree(cross_run, second)
    index_source(Models.load(small_run, second), photos, out)
    second.rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"the reranker of .*both cannot be loaded: .*second.*with --reranker where it"):
        Models.load(small_run, library=out)
    report = index_source(Models.load(small_run, tmp_path / "moved", library=out), photos, out)
    assert report.counts["unchanged"] == 12
    source = Library.open(out).manifest.reranker.source
    assert source == str(tmp_path / "moved")
    with pytest.raises(UserError, match=r'"calligram index RUN SOURCE --out .*both --reranker .*moved --rebuild"'):
        load_recorded(out, "reranker", Model("other" * 8, source))


def test_a_localizer_can_be_added_and_exchanged_at_any_time_and_stays(small_run, localizer_run, photos, tmp_path):
    """Nothing that is stored depends on it, so no picture is encoded again."""
    out, first, second = tmp_path / "library", localizer_run(tmp_path / "first"), localizer_run(tmp_path / "second", 1)
    index_source(Models.load(small_run), photos, out)
    for run in (first, second):
        report = index_source(Models.load(small_run, localizer=run), photos, out)
        assert report.counts["unchanged"] == 12
        assert Library.open(out).stats()["localizer"] == str(run)
    index_source(Models.load(small_run), photos, out)
    index_source(Models.load(small_run), photos, out, rebuild=True)
    library = Library.open(out)
    assert library.stats()["localizer"] == str(second)
    assert Locator.open(library).model.source == str(second)
    shutil.copy(first / "best.safetensors", second / "best.safetensors")
    with pytest.raises(UserError, match=r"was indexed with localizer .*; take it with .* --localizer"):
        Locator.open(library)


def test_a_localizer_must_see_regions(small_run):
    with pytest.raises(UserError, match="sees whole pictures; train one on regions"):
        Models.load(small_run, localizer=small_run)


def test_a_matcher_of_regions_scores_no_whole_pictures(small_run, localizer_run, tmp_path):
    """Neither alone nor as re-ranker; a library of such scores would answer with anything."""
    regions = localizer_run(tmp_path / "regions")
    with pytest.raises(UserError, match="regions finds phrases within pictures"):
        Models.load(regions)
    with pytest.raises(UserError, match="regions finds phrases within pictures"):
        Models.load(small_run, reranker=regions)


def test_a_dual_encoder_needs_no_run(tiny_clip, photos, tmp_path):
    index_source(Models.load(str(tiny_clip)), photos, tmp_path / "library")
    library = Library.open(tmp_path / "library")
    assert (library.images.dim, len(library)) == (16, 12)


def test_what_is_forgotten_stays_away_until_it_changes(models, photos, folder, photograph):
    library = Library.open(folder)
    ids = by_path(library)
    assert forget(folder, [ids["photo_0.jpg"], "trip/photo_1.jpg", str(photos / "trip" / "photo_2.jpg")]) == 3
    assert forget(folder, [], where="year = 2014") == 1
    library = Library.open(folder)
    assert len(library) == len(library.images) == 8
    for name in ("photo_0.jpg", "trip/photo_4.jpg"):
        for ask in (library.item, library.thumbnail, library.picture):
            with pytest.raises(UserError, match="has no item"):
                ask(ids[name])
    assert index_source(models, photos, folder).counts["forgotten"] == 4
    (photos / "photo_0.jpg").rename(photos / "other name.jpg")
    photograph(photos / "trip" / "photo_1.jpg", 99)
    report = index_source(models, photos, folder)
    assert (report.counts["forgotten"], report.counts["added"]) == (3, 1)
    report = index_source(models, photos, folder, again=True)
    assert report.counts["added"] == 3
    assert len(Library.open(folder)) == 12


def test_nothing_of_what_is_forgotten_can_be_read_in_any_version(models, tiny_draft, tmp_path):
    import lancedb

    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    draft.captions[0].text = "Kilimanjaro"
    write_collection(draft, tmp_path / "collection")
    out = tmp_path / "library"
    index_source(models, tmp_path / "collection", out)
    before = Library.open(out)
    ids = by_path(before)
    assert before.full_text("kilimanjaro", 3)
    forget(out, [ids["train-0"]])
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


def test_gone_items_and_folders_can_be_forgotten(models, photos, folder):
    (photos / "photo_0.jpg").unlink()
    index_source(models, photos, folder)
    assert forget(folder, [], gone=True) == 1
    assert forget(folder, [str(photos / "trip")]) == 8
    assert len(list(Library.open(folder).rows())) == 3


def test_what_is_not_there_cannot_be_forgotten_and_nothing_else_is(folder):
    with pytest.raises(UserError, match="no item with the id or path 'nothing'; nothing was forgotten"):
        forget(folder, ["photo_0.jpg", "nothing"])
    with pytest.raises(UserError, match="say what to forget"):
        forget(folder, [])
    with pytest.raises(UserError, match="yaer"):
        forget(folder, [], where="yaer = 3")
    assert len(Library.open(folder)) == 12


def test_vectors_may_be_kept_by_milvus(models, photos, tmp_path, photograph):
    out, engine = tmp_path / "library", f"milvus:{tmp_path / 'milvus.db'}"
    index_source(models, photos, out, engine=engine)
    library = Library.open(out)
    assert library.manifest.index == engine
    ids = by_path(library)
    assert library.images.search(library.images.vectors([ids["photo_0.jpg"]]), 1)[0][0].id == ids["photo_0.jpg"]
    (photos / "photo_0.jpg").unlink()
    photograph(photos / "new.jpg", 30)
    report = index_source(models, photos, out)
    assert (report.counts["gone"], report.counts["added"]) == (1, 1)
    library = Library.open(out)
    assert len(library.images) == len(library) == 12
    with pytest.raises(UserError, match="add --rebuild to move them"):
        index_source(models, photos, out, engine="milvus://elsewhere:19530")


def test_a_library_of_another_version_is_refused_or_brought_up_to_date(models, photos, folder, monkeypatch):
    file = folder / manifest.MANIFEST
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "version": manifest.VERSION + 1}))
    with pytest.raises(UserError, match="reads up to 1; upgrade it"):
        Library.open(folder)
    with pytest.raises(UserError, match="reads up to 1; upgrade it"):
        index_source(models, photos, folder)
    # As if this were the next version, which calls the sources otherwise.
    file.write_text(json.dumps({**{k: v for k, v in content.items() if k != "sources"}, "roots": content["sources"]}))
    monkeypatch.setattr(manifest, "VERSION", 2)
    with pytest.raises(UserError, match="cannot be brought up to 2"):
        index_source(models, photos, folder)
    monkeypatch.setattr(manifest, "MIGRATIONS", {1: lambda folder, old: {**old, "sources": old.pop("roots")}})
    with pytest.raises(UserError, match='older than 2; "calligram index" brings it up to date'):
        Library.open(folder)
    assert index_source(models, photos, folder).counts["unchanged"] == 12
    assert len(Library.open(folder)) == 12
    assert json.loads(file.read_text())["version"] == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": "calligram-library", "version": 1}', '{"format": "x"}']
)
def test_a_damaged_library_is_refused_with_a_word_and_can_be_rebuilt(models, photos, folder, text):
    (folder / manifest.MANIFEST).write_text(text)
    with pytest.raises(UserError, match=r"is damaged|does not describe"):
        Library.open(folder)
    index_source(models, photos, folder, rebuild=True)
    assert len(Library.open(folder)) == 12


def test_a_folder_that_is_no_library_is_refused(tmp_path):
    with pytest.raises(UserError, match='make one with "calligram index RUN SOURCE --out'):
        Library.open(tmp_path)


def test_the_collection_itself_can_still_be_opened(of_tiny, tiny):
    assert Collection.open(tiny.folder).fingerprint == tiny.fingerprint
