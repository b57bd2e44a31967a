"""Where words look in pictures of a library, whose matcher reads features stored with a collection."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calligram.data.collection import Collection
from calligram.data.draft import RegionRecord
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.evaluation.attention import attention_to_sentence, encode_collection_image
from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models import catalog
from calligram.models.catalog import INPUTS_FOLDER, MATCHER_FILE, RUN_FILE, WEIGHTS_FILE, load_matcher
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.scan import SCAN, SCANSettings
from calligram.search.indexing.run import index_source
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.query.searcher import Searcher

SENTENCE = "a red disc"


@pytest.fixture
def folder(tiny_draft, tmp_path):
    """A collection with features of boxes, a run that reads them, and a library of both."""
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    np.save(tmp_path / "w.npy", np.random.default_rng(0).normal(size=(len(draft.images), 3, 4)).astype(np.float32))
    draft.features["windows"] = [tmp_path / "w.npy"]
    for row, image in enumerate(draft.images):
        image.feature_rows["windows"] = row
        for number in range(3):
            box = (4.0 * number, 2.0, 20.0 + row, 30.0)
            draft.regions.append(RegionRecord(f"{image.id}/w{number}", image.id, box, source="windows"))
    write_draft(draft, tmp_path / "collection")
    words = Vocabulary.build([SENTENCE], min_count=1)
    torch.manual_seed(0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RUN_FILE).write_text("{}\n")
    matcher = SCAN(
        SCANSettings(
            ImageArchitecture(feature_dim=4),
            TextArchitecture(vocabulary=len(words), word_dim=6, hidden=8, bidirectional=True),
            8,
        )
    )
    catalog.save(matcher, tmp_path / "run" / MATCHER_FILE, tmp_path / "run" / WEIGHTS_FILE)
    Inputs(StoredInput("windows"), words).save(tmp_path / "run" / INPUTS_FOLDER)
    index_source(LibraryMatchers.load(tmp_path / "run"), tmp_path / "collection", tmp_path / "library")
    return tmp_path


def item_called(searcher: Searcher, name: str) -> str:
    return next(row["id"] for row in searcher.library.rows() if row["path"] == name)


def test_boxes_are_those_of_the_items_own_row(folder):
    searcher = Searcher.open(folder / "library")
    stored, collection = load_matcher(folder / "run"), Collection.open(folder / "collection")
    for name, row in (("train-2", 2), ("dev-1", 7)):
        found = searcher.explain(item_called(searcher, name), SENTENCE).attention
        expected = np.array([[4 * n, 2, 20 + row, 30] for n in range(3)]) / np.array([40, 32, 40, 32])
        np.testing.assert_allclose(found.boxes, expected, atol=1e-6)
        seen = encode_collection_image(stored.matcher, stored.inputs, collection, name)
        np.testing.assert_allclose(
            found.words, attention_to_sentence(stored.matcher, stored.inputs, seen, SENTENCE).words, atol=5e-3
        )


def test_without_the_collection_words_are_weighed_and_nothing_has_a_place(folder):
    searcher = Searcher.open(folder / "library")
    before = searcher.explain(item_called(searcher, "train-2"), SENTENCE)
    (folder / "collection").rename(folder / "elsewhere")
    after = searcher.explain(item_called(searcher, "train-2"), SENTENCE)
    assert after.words == before.words
    assert before.attention.boxes is not None
    assert after.attention.boxes is None
    np.testing.assert_array_equal(after.attention.words, before.attention.words)


def test_explaining_a_missing_picture_or_an_unknown_item_is_an_error(folder):
    gone = item_called(Searcher.open(folder / "library"), "train-2")
    (folder / "collection" / "images").rename(folder / "images")
    try:
        index_source(LibraryMatchers.load(folder / "run"), folder / "collection", folder / "library")
    finally:
        (folder / "images").rename(folder / "collection" / "images")
    with pytest.raises(UserError, match="was missing when its source was last indexed; index it again"):
        Searcher.open(folder / "library").explain(gone, SENTENCE)
    with pytest.raises(UserError, match="has no item 'nobody'; use an id of a search result"):
        Searcher.open(folder / "library").explain("nobody", SENTENCE)
