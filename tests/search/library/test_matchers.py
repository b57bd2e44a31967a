"""What a library remembers of its matchers: re-ranker, localizer, dual encoder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import pytest
import torch
from PIL import Image
from torch import nn

from calligram.errors import UserError
from calligram.models import catalog
from calligram.models.catalog import MATCHER_FILE, WEIGHTS_FILE, load_matcher
from calligram.models.matcher import Encoded, Matcher
from calligram.search.explain.library_localizer import LibraryLocalizer
from calligram.search.indexing.run import index_source
from calligram.search.library import matchers
from calligram.search.library.library import Library
from calligram.search.library.manifest import MatcherRecord
from calligram.search.library.matchers import LibraryMatchers, MatcherEncoder, load_recorded


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


def test_vectors_do_not_put_in_order_again_what_they_have_put_in_order(small_run):
    with pytest.raises(UserError, match=r"orders the candidates already; leave out --reranker, or give a run"):
        LibraryMatchers.load(small_run, small_run)


@pytest.fixture
def cross_run(small_run, tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "MATCHERS", catalog.MatcherCatalog(catalog.MATCHERS.references, "calligram.matchers"))
    catalog.matcher("cross", settings=CrossSettings)(Cross)
    folder = tmp_path / "cross"
    shutil.copytree(small_run, folder)
    torch.manual_seed(3)
    catalog.save(Cross(CrossSettings()), folder / MATCHER_FILE, folder / WEIGHTS_FILE)
    return folder


def test_many_texts_have_the_vectors_of_single_texts_in_their_order(small_run, monkeypatch):
    monkeypatch.setattr(matchers, "BATCH_TEXTS", 2)
    encoder, texts = MatcherEncoder(load_matcher(small_run)), ["a warm colour", "snow", "a red disc", "", "blue snow"]
    alone = torch.cat([encoder.texts([text]).vectors for text in texts])
    torch.testing.assert_close(torch.from_numpy(encoder.text_vectors(texts)), alone)


@pytest.mark.parametrize("alone", [False, True])
def test_the_parts_of_a_reranker_are_stored_in_half_precision(cross_run, small_run, photos, tmp_path, alone):
    models = LibraryMatchers.load(cross_run) if alone else LibraryMatchers.load(small_run, cross_run)
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


def test_the_reranker_is_remembered_and_none_can_be_added_later(cross_run, small_run, photos, indexed, tmp_path):
    index_source(LibraryMatchers.load(small_run, cross_run), photos, tmp_path / "both")
    index_source(LibraryMatchers.load(small_run, library=tmp_path / "both"), photos, tmp_path / "both")
    with pytest.raises(UserError, match=r"was indexed with no reranker, this is reranker .*--rebuild"):
        index_source(LibraryMatchers.load(small_run, cross_run), photos, indexed)
    with pytest.raises(UserError, match="has no reranker; index it with --reranker RUN"):
        Library.open(indexed).parts(Library.open(indexed).sample(1))


def test_a_reranker_that_is_gone_or_has_changed_is_named_with_what_to_do(cross_run, small_run, photos, tmp_path):
    second, out = tmp_path / "second", tmp_path / "both"
    shutil.copytree(cross_run, second)
    index_source(LibraryMatchers.load(small_run, second), photos, out)
    second.rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"the reranker of .*both cannot be loaded: .*second.*with --reranker where it"):
        LibraryMatchers.load(small_run, library=out)
    report = index_source(LibraryMatchers.load(small_run, tmp_path / "moved", library=out), photos, out)
    assert report.counts["unchanged"] == 12
    source = Library.open(out).manifest.reranker.source
    assert source == str(tmp_path / "moved")
    with pytest.raises(UserError, match=r'"calligram index RUN SOURCE --out .*both --reranker .*moved --rebuild"'):
        load_recorded(out, "reranker", MatcherRecord("other" * 8, source))


def test_a_localizer_can_be_added_and_exchanged_at_any_time_and_stays(small_run, localizer_run, photos, tmp_path):
    """Nothing that is stored depends on it, so no picture is encoded again."""
    out, first, second = tmp_path / "library", localizer_run(tmp_path / "first"), localizer_run(tmp_path / "second", 1)
    index_source(LibraryMatchers.load(small_run), photos, out)
    for run in (first, second):
        report = index_source(LibraryMatchers.load(small_run, localizer=run), photos, out)
        assert report.counts["unchanged"] == 12
        assert Library.open(out).stats()["localizer"] == str(run)
    index_source(LibraryMatchers.load(small_run), photos, out)
    index_source(LibraryMatchers.load(small_run), photos, out, rebuild=True)
    library = Library.open(out)
    assert library.stats()["localizer"] == str(second)
    assert LibraryLocalizer.open(library).model.source == str(second)
    shutil.copy(first / "best.safetensors", second / "best.safetensors")
    with pytest.raises(UserError, match=r"was indexed with localizer .*; use the new one with .* --localizer"):
        LibraryLocalizer.open(library)


def test_a_localizer_must_see_regions(small_run):
    with pytest.raises(UserError, match="scores whole pictures; train one on regions"):
        LibraryMatchers.load(small_run, localizer=small_run)


def test_a_matcher_of_regions_scores_no_whole_pictures(small_run, localizer_run, tmp_path):
    """Neither alone nor as re-ranker; a library of such scores would answer with anything."""
    regions = localizer_run(tmp_path / "regions")
    with pytest.raises(UserError, match="regions finds phrases within pictures"):
        LibraryMatchers.load(regions)
    with pytest.raises(UserError, match="regions finds phrases within pictures"):
        LibraryMatchers.load(small_run, reranker=regions)


def test_a_dual_encoder_needs_no_run(tiny_clip, photos, tmp_path):
    index_source(LibraryMatchers.load(str(tiny_clip)), photos, tmp_path / "library")
    library = Library.open(tmp_path / "library")
    assert (library.images.dim, len(library)) == (16, 12)
