from __future__ import annotations

import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.models.catalog import load_matcher
from calligram.search.indexing.run import index_source
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.query.cutoff import ScoreScale, ScoreScales
from calligram.search.query.query import ItemId, Query, QueryTerm
from calligram.search.query.searcher import Searcher
from calligram.vectors import unit_length

PLAIN = {"hybrid": False, "all": True}


@pytest.fixture(scope="module")
def world(tiny, write_run, tmp_path_factory):
    """The tiny collection in a library, and every score by hand."""
    folder = tmp_path_factory.mktemp("searched")
    stored = load_matcher(write_run(folder / "run"))
    index_source(LibraryMatchers(stored), tiny.folder, folder / "library")
    searcher = Searcher.open(folder / "library")
    pairing = tiny.sentences("all")
    names = {item.name: item.id for item in searcher.library.known_items([r["id"] for r in searcher.library.rows()])}
    ids = [names[id] if id in names else names[f"{id}.png"] for id in pairing.visuals.ids]
    with torch.no_grad():
        pictures = [pairing.visuals.open(row) for row in range(len(ids))]
        rows = stored.inputs.images.finish(stored.inputs.images.images(pictures))
        images = unit_length(stored.matcher.encode_images(rows).vectors).numpy()
    return SimpleNamespace(
        folder=folder, library=folder / "library", searcher=searcher, stored=stored, tiny=tiny, ids=ids,
        images=images, pictures=pictures, pairing=pairing,
    )  # fmt: skip


@torch.no_grad()
def text_vector(world, text: str) -> np.ndarray:
    return unit_length(world.stored.matcher.encode_texts(*world.stored.inputs.texts.texts([text])).vectors).numpy()[0]


def check(hits, ids, scores) -> None:
    """Hits are the first of all items by falling score."""
    by_id = dict(zip(ids, scores.tolist(), strict=True))
    expected = sorted(by_id.values(), reverse=True)[: len(hits)]
    assert [hit.score for hit in hits] == pytest.approx(expected, abs=2e-3)
    assert [by_id[hit.id] for hit in hits] == pytest.approx([hit.score for hit in hits], abs=2e-3)
    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))


def test_images_by_a_text_are_in_the_order_of_the_matchers_score(world):
    results = world.searcher.images("a red disc", 7, **PLAIN)
    check(results.hits, world.ids, world.images @ text_vector(world, "a red disc"))
    assert len(results.hits) == 7
    assert set(results.stage_seconds) == {"encode", "search", "rerank"}


def test_images_by_a_picture_find_it_first(world):
    results = world.searcher.images(world.pictures[3], 18, **PLAIN)
    check(results.hits, world.ids, world.images @ world.images[3])
    assert results.hits[0].score == pytest.approx(1, abs=2e-3)


def test_an_item_is_not_like_itself(world):
    hits = world.searcher.like(world.ids[3], 18).hits
    others = [place for place, id in enumerate(world.ids) if id != world.ids[3]]
    assert len(hits) == 17
    check(hits, [world.ids[p] for p in others], (world.images @ world.images[3])[others])


def test_captions_by_texts_and_pictures(world):
    strings = world.pairing.texts.strings
    vectors = np.stack([text_vector(world, text) for text in strings])
    hits = world.searcher.texts("snow", 3, all=True).hits
    assert [hit.text for hit in hits] == ["snow"] * 3
    assert hits[0].path is None
    hits = world.searcher.texts(world.pictures[0], 40, all=True).hits
    expected = sorted((vectors @ world.images[0]).tolist(), reverse=True)[:40]
    assert [hit.score for hit in hits] == pytest.approx(expected, abs=2e-3)


def test_a_score_is_the_weighted_mean_over_terms_with_negative_weights(world):
    query = Query((QueryTerm("a red disc", 2.0), QueryTerm("a warm colour"), QueryTerm("snow", -1.0)))
    scores = world.images @ (
        0.5 * text_vector(world, "a red disc")
        + 0.25 * text_vector(world, "a warm colour")
        - 0.25 * text_vector(world, "snow")
    )
    check(world.searcher.images(query, 18, **PLAIN).hits, world.ids, scores)


def test_the_weights_of_a_text_and_a_picture_are_divided_by_the_spread_of_their_scores(world):
    scales = ScoreScales(
        across=ScoreScale(0.0, 0.1, -math.inf),
        short_texts=ScoreScale(0.0, 0.1, -math.inf),
        images=ScoreScale(0.0, 0.3, -math.inf),
    )
    searcher = Searcher(world.searcher.library, world.searcher._encoders[0], scales=scales)
    query = Query((QueryTerm("a red disc"), QueryTerm(world.pictures[5]), QueryTerm(ItemId(world.ids[2]), -1.0)))
    text, picture, item = text_vector(world, "a red disc"), world.images[5], world.images[2]
    hits = searcher.images(query, 17, **PLAIN).hits
    kept = [place for place, id in enumerate(world.ids) if id != world.ids[2]]
    scores = world.images @ (0.6 * text + 0.2 * picture - 0.2 * item)
    check(hits, [world.ids[p] for p in kept], scores[kept])


def test_conditions_are_kept_by_every_hit(world):
    hits = world.searcher.images("a red disc", 18, where="split = 'test' and n < 3").hits
    items = world.searcher.library.items([hit.id for hit in hits])
    assert len(hits) == 3
    assert all(item.metadata["split"] == "test" and item.metadata["n"] < 3 for item in items)
    assert world.searcher.texts("snow", 99, where="split = 'dev'", all=True).hits
    assert world.searcher.images("snow", where="n > 1000").hits == ()
    with pytest.raises(UserError, match="did you mean 'split'"):
        world.searcher.images("snow", where="splat = 'test'")


def test_images_with_every_word_of_the_query_come_up_and_keep_the_matchers_score(world):
    results = world.searcher.images("snow", 6)
    captioned = {id for id in (hit.id for hit in results.hits) if "snow" in world.searcher.library.item(id).captions}
    assert len(captioned) == 3
    scores = dict(zip(world.ids, (world.images @ text_vector(world, "snow")).tolist(), strict=True))
    assert [scores[hit.id] for hit in results.hits] == pytest.approx([hit.score for hit in results.hits], abs=2e-3)
    # Any word suffices when asked for, and nothing but the matcher counts when not.
    assert {hit.id for hit in world.searcher.images("snow sky", 3, hybrid=True).hits} & captioned
    plain = world.searcher.images("snow sky", 18, **PLAIN).hits
    assert [hit.id for hit in world.searcher.images("snow sky", 18).hits] == [hit.id for hit in plain]


def test_fewer_hits_are_the_first_of_more_hits(world):
    for query in ("snow", "a red disc", world.pictures[0]):
        whole = world.searcher.images(query, 18).hits
        for k in (1, 4, 9):
            assert world.searcher.images(query, k).hits == whole[:k]


def with_cutoff(world, cutoff: float) -> Searcher:
    strict = ScoreScale(0.0, 0.1, cutoff)
    scales = replace(world.searcher.scales, across=strict, short_texts=strict, images=strict)
    return Searcher(world.searcher.library, world.searcher._encoders[0], scales=scales)


def test_hits_below_the_cutoff_are_counted_and_shown_only_on_request(world):
    scores = np.sort(world.images @ text_vector(world, "a red disc"))[::-1]
    searcher = with_cutoff(world, float(scores[5] + scores[6]) / 2)  # pictures come in equal threes
    results = searcher.images("a red disc", 8, hybrid=False)
    assert (len(results.hits), results.below_cutoff) == (6, 2)
    assert len(searcher.images("a red disc", 8, hybrid=False, all=True).hits) == 8
    nothing = with_cutoff(world, 2.0).images("a red bus", 8)
    assert (nothing.hits, nothing.below_cutoff) == ((), 8)


def test_images_with_every_word_and_neighbours_of_an_item_are_never_cut_off(world):
    searcher = with_cutoff(world, 2.0)
    hits = searcher.images("snow", 18).hits
    assert [("snow" in searcher.library.item(hit.id).captions) for hit in hits] == [True] * 3
    assert len(searcher.like(world.ids[0], 5).hits) == 5
    assert not searcher.images(world.pictures[0], 5).hits


def test_short_texts_have_a_cutoff_of_their_own(world):
    scales = ScoreScales(across=ScoreScale(0.0, 0.1, 2.0), short_texts=ScoreScale(0.0, 0.1, -2.0))
    searcher = Searcher(world.searcher.library, world.searcher._encoders[0], scales=scales)
    assert len(searcher.images("a red disc", 5, hybrid=False).hits) == 5
    assert not searcher.images("a red disc is round", 5, hybrid=False).hits


def test_words_that_the_matcher_has_never_seen_have_no_good_match(world):
    results = world.searcher.images("a quarterly treasury disc", 5)
    assert (results.hits, results.below_cutoff, results.unknown_words) == ((), 5, ("quarterly", "treasury"))
    assert len(world.searcher.images("a quarterly treasury disc", 5, all=True).hits) == 5
    # Half is not most; what is to be avoided and what a picture says is not asked of the words.
    assert world.searcher.images("a quarterly red disc", 5).hits
    assert world.searcher.images(Query((QueryTerm("disc"), QueryTerm("treasury", -1.0))), 5).hits
    assert world.searcher.images(Query((QueryTerm(world.pictures[0]), QueryTerm("treasury"))), 5).hits


def test_a_cutoff_is_estimated_from_captions_when_there_are_enough_images(tiny_draft, write_run, tmp_path):
    (tmp_path / "pictures").mkdir()
    collection = write_draft(tiny_draft(tmp_path / "pictures", 4), tmp_path / "collection")
    stored = load_matcher(write_run(tmp_path / "run"))
    index_source(LibraryMatchers(stored), collection.folder, tmp_path / "library")
    searcher = Searcher.open(tmp_path / "library")
    assert math.isfinite(searcher.scales.across.cutoff)
    assert math.isfinite(searcher.scales.short_texts.cutoff)
    assert 0 < searcher.scales.across.spread < 1
    assert searcher.scales == Searcher.open(tmp_path / "library").scales


def state(searcher: Searcher) -> bytes:
    """Everything a search could have changed: weights, buffers, scales, and which objects there are."""
    encoder = searcher._encoders[0]
    weights = {name: value.numpy().tobytes() for name, value in encoder.matcher.state_dict().items()}
    return pickle.dumps(
        (weights, encoder.matcher.training, searcher.scales, sorted(vars(searcher)), len(searcher.library))
    )


def test_searches_at_the_same_time_equal_searches_one_by_one_and_change_nothing(world):
    before, parts = state(world.searcher), dict(vars(world.searcher))
    texts = ["a red disc", "snow", "the round thing is blue", "a warm colour", "green yellow"]
    queries = [*texts, *world.pictures[:3], Query((QueryTerm("snow", 2.0), QueryTerm(world.pictures[4], -1.0)))] * 6

    def search(query) -> tuple:
        return world.searcher.images(query, 5).hits, world.searcher.texts(query, 5).hits

    serial = [search(query) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(search, queries)) == serial
    assert state(world.searcher) == before
    assert all(vars(world.searcher)[name] is value for name, value in parts.items())


def test_a_searcher_follows_its_library_as_a_new_one(photograph, photos, write_run, tmp_path):
    stored = load_matcher(write_run(tmp_path / "run"))
    index_source(LibraryMatchers(stored), photos, tmp_path / "library")
    searcher = Searcher.open(tmp_path / "library")
    assert searcher.refreshed() is searcher
    seen = searcher.images("snow", 50, **PLAIN)
    photograph(photos / "late.jpg", 99)
    index_source(LibraryMatchers(stored), photos, tmp_path / "library")
    later = searcher.refreshed()
    assert later is not searcher
    assert later._encoders[0] is searcher._encoders[0]
    assert len(later.images("snow", 50, **PLAIN).hits) == len(seen.hits) + 1
    assert searcher.images("snow", 50, **PLAIN).hits == seen.hits
    assert str(photos / "late.jpg") in {hit.path for hit in later.images("late", 50, all=True).hits}


def test_a_matcher_that_has_changed_is_refused_with_the_command_that_rebuilds(photos, write_run, tmp_path):
    run = write_run(tmp_path / "run")
    index_source(LibraryMatchers(load_matcher(run)), photos, tmp_path / "library")
    run.rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"the matcher of .*library cannot be loaded"):
        Searcher.open(tmp_path / "library")
    write_run(tmp_path / "run", seed=1)
    with pytest.raises(UserError, match=r'rebuild it with "calligram index .*run SOURCE --out .*library --rebuild"'):
        Searcher.open(tmp_path / "library")
    with pytest.raises(UserError, match="not a library"):
        Searcher.open(tmp_path / "nowhere")


def test_invalid_requests_are_refused(world):
    with pytest.raises(UserError, match="k must be at least 1, got 0"):
        world.searcher.images("snow", 0)
    with pytest.raises(UserError, match="depth must be at least 1, got 0"):
        world.searcher.texts("snow", depth=0)
    with pytest.raises(UserError, match="nowhere"):
        world.searcher.like("nowhere")
    with pytest.raises(UserError, match="not of int"):
        world.searcher.images(3)
    with pytest.raises(UserError, match="not captions"):
        world.searcher.texts("snow", hybrid=True)
    assert world.searcher.images(Image.new("L", (3, 3))).hits
    assert world.searcher.images("?!", **PLAIN).hits


def test_a_library_without_items_has_no_hits(write_run, tmp_path):
    (tmp_path / "photos").mkdir()
    index_source(LibraryMatchers(load_matcher(write_run(tmp_path / "run"))), tmp_path / "photos", tmp_path / "library")
    searcher = Searcher.open(tmp_path / "library")
    assert searcher.images("snow").hits == ()
    assert searcher.texts("snow").hits == ()
