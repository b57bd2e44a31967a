"""A second stage that truly needs both sides: words attend to places of the picture."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models.catalog import StoredMatcher, load_matcher
from calligram.models.matcher import Encoded, Matcher
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers, MatcherEncoder
from calligram.search.query.query import ItemId, Query, QueryTerm
from calligram.search.query.rerank import merge_candidates, sort_by_score
from calligram.search.query.searcher import Searcher

WORDS = Vocabulary.build(["a red disc the round thing is blue green yellow white black warm colour snow"], min_count=1)
DIM = 12


class Attending(Matcher):
    """Each word looks for its place in the picture; a network judges what it saw there."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Conv2d(3, DIM, kernel_size=4, stride=4)
        self.read = nn.Embedding(len(WORDS), DIM)
        self.judge = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, 1))

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        parts = self.look(images).flatten(2).transpose(1, 2)
        return Encoded(parts.mean(1), parts, torch.ones(parts.shape[:2], dtype=torch.bool))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        parts = self.read(texts)
        assert mask is not None
        return Encoded((parts * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True), parts, mask)

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        seen = F.softmax(4 * texts.parts @ images.parts.transpose(1, 2), dim=-1) @ images.parts
        judged = self.judge(seen * texts.parts).squeeze(-1) * texts.mask
        return judged.sum(1) / texts.mask.sum(1)


def attending(seed: int = 0) -> StoredMatcher:
    torch.manual_seed(seed)
    return StoredMatcher(Attending().eval(), Inputs(PixelInput(16), WORDS), f"attending {seed}", "attending")


@pytest.fixture(scope="module")
def stage(tiny, write_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reranked")
    first, second = load_matcher(write_run(folder / "run")), attending()
    index_source(LibraryMatchers(first, second), tiny.folder, folder / "library")
    library = Library.open(folder / "library")
    searcher = Searcher(library, MatcherEncoder(first), MatcherEncoder(second))
    ids = [row["id"] for row in library.rows()]
    return SimpleNamespace(library=library, first=first, second=second, searcher=searcher, ids=ids, tiny=tiny)


@torch.no_grad()
def exhaustive(stage, text: str) -> dict[str, float]:
    """The second stage's score of every image with a text, from what the library keeps, pair by pair."""
    query = stage.second.matcher.encode_texts(*stage.second.inputs.texts.texts([text]))
    return {id: float(stage.second.matcher.score_pairs(stage.library.parts([id]), query)) for id in stage.ids}


def test_depth_that_covers_everything_is_exhaustive_scoring(stage):
    for text in ("a red disc", "snow", "the round thing is blue"):
        truth = exhaustive(stage, text)
        for depth in (None, len(stage.ids), 1000):
            hits = stage.searcher.images(text, len(stage.ids), hybrid=False, all=True, depth=depth).hits
            assert {hit.id for hit in hits} == set(stage.ids)
            assert [hit.score for hit in hits] == pytest.approx(sorted(truth.values(), reverse=True), abs=1e-5)
            assert [truth[hit.id] for hit in hits] == pytest.approx([hit.score for hit in hits], abs=1e-5)


def test_stored_parts_equal_the_matchers_parts_except_for_rounding(stage):
    picture = stage.tiny.sentences("test").visuals.open(2)
    with torch.no_grad():
        direct = stage.second.matcher.score(
            stage.second.matcher.encode_images(
                stage.second.inputs.images.finish(stage.second.inputs.images.images([picture]))
            ),
            stage.second.matcher.encode_texts(*stage.second.inputs.texts.texts(["a red disc"])),
        )
    nearest = min(abs(score - float(direct)) for score in exhaustive(stage, "a red disc").values())
    assert nearest < 2e-3


def test_the_second_stage_needs_both_sides_and_changes_the_order(stage):
    plain = Searcher(stage.library, MatcherEncoder(stage.first))
    first = [hit.id for hit in plain.images("a red disc", 18, hybrid=False, all=True).hits]
    second = [hit.id for hit in stage.searcher.images("a red disc", 18, hybrid=False, all=True).hits]
    assert sorted(first) == sorted(second)
    assert first != second


def test_a_small_depth_reorders_only_the_first_candidates(stage):
    plain = Searcher(stage.library, MatcherEncoder(stage.first))
    candidates = [hit.id for hit in plain.images("a red disc", 5, hybrid=False, all=True).hits]
    truth = exhaustive(stage, "a red disc")
    hits = stage.searcher.images("a red disc", 3, hybrid=False, all=True, depth=5).hits
    assert [hit.id for hit in hits] == sorted(candidates, key=lambda id: -truth[id])[:3]
    # A depth under k is raised to k: all hits have scores of one kind.
    hits = stage.searcher.images("a red disc", 5, hybrid=False, all=True, depth=1).hits
    assert [hit.id for hit in hits] == sorted(candidates, key=lambda id: -truth[id])


def test_the_score_of_several_terms_is_the_weighted_sum_of_theirs(stage):
    query = Query((QueryTerm("a red disc", 3.0), QueryTerm("snow", -1.0)))
    red, snow = exhaustive(stage, "a red disc"), exhaustive(stage, "snow")
    expected = {id: 0.75 * red[id] - 0.25 * snow[id] for id in stage.ids}
    hits = stage.searcher.images(query, 18, hybrid=False, all=True, depth=None).hits
    assert [hit.score for hit in hits] == pytest.approx(sorted(expected.values(), reverse=True), abs=1e-5)
    assert [expected[hit.id] for hit in hits] == pytest.approx([hit.score for hit in hits], abs=1e-5)


def test_captions_are_reordered_for_pictures_and_for_items(stage):
    captions = {found.id for found in stage.library.captions.search(np.ones((1, 8), np.float32) / 8**0.5, 100)[0]}
    own = stage.ids[4]
    with torch.no_grad():
        image = stage.library.parts([own])
        texts = {c.id: stage.second.matcher.encode_texts(*stage.second.inputs.texts.texts([c.text]))
                 for c in stage.library.texts(sorted(captions))}  # fmt: skip
        truth = {id: float(stage.second.matcher.score_pairs(image, text)) for id, text in texts.items()}
    hits = stage.searcher.texts(ItemId(own), len(truth), all=True, depth=None).hits
    assert [hit.score for hit in hits] == pytest.approx(sorted(truth.values(), reverse=True), abs=1e-4)
    picture = stage.tiny.sentences("test").visuals.open(1)
    assert stage.searcher.texts(picture, 5, all=True).stage_seconds["rerank"] > 0


def test_queries_that_the_second_stage_cannot_score_keep_the_first_stages_order(stage):
    plain = Searcher(stage.library, MatcherEncoder(stage.first))
    picture = stage.tiny.sentences("test").visuals.open(1)
    mixed = Query((QueryTerm("a red disc"), QueryTerm(picture)))
    for query in (picture, mixed):
        one, two = (s.images(query, 9, hybrid=False, all=True).hits for s in (plain, stage.searcher))
        assert [hit.id for hit in one] == [hit.id for hit in two]
    one, two = (s.texts("a red disc", 9, all=True).hits for s in (plain, stage.searcher))
    assert one == two


def test_what_words_found_is_compared_and_so_are_the_k_nearest():
    near = ["a", "b", "c", "d", "e"]
    assert merge_candidates(near, ["y", "b"], 4, 1) == ["a", "b", "c", "y"]
    assert merge_candidates(near, ["y", "e"], 4, 1) == ["a", "b", "e", "y"]
    assert merge_candidates(near, ["y", "z"], 2, 1) == ["a", "y", "z"]
    assert merge_candidates(near, [], 9, 3) == near
    assert merge_candidates([], ["z"], 4, 3) == ["z"]


def test_equal_scores_are_ordered_by_id():
    found = sort_by_score(["c", "d", "a", "b"], np.array([0.5, 0.9, 0.5, 0.9], np.float32))
    assert [scored.id for scored in found] == ["b", "d", "a", "c"]


@torch.no_grad()
def test_words_are_weighed_by_the_second_stages_score(stage):
    id, text = stage.ids[2], "a red disc, the blue"
    pixels = stage.second.inputs.images.images([stage.tiny.pictures.open(2)])

    def score(words: str) -> float:
        seen = stage.second.matcher.encode_images(stage.second.inputs.images.finish(pixels))
        read = stage.second.matcher.encode_texts(*stage.second.inputs.texts.texts([words]))
        return float(stage.second.matcher.score(seen, read))

    found = stage.searcher.explain(id, text)
    hit = next(hit for hit in stage.searcher.images(text, len(stage.ids), all=True).hits if hit.id == id)
    assert found.score == pytest.approx(hit.score, abs=1e-5)
    expected = [score(text) - score(text.replace(word, "", 1)) for word in ("a ", "red", "disc", "the", "blue")]
    assert [word.weight for word in found.words] == pytest.approx(
        expected, abs=2e-3
    )  # parts are kept in half precision
