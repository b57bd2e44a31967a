"""Candidates by vectors, their order by the score, against rankings written out item by item."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.evaluation import rerank
from calligram.evaluation.recall import EncodedPairing, encode_pairing, load_pairing, relevant_ranks, score_matrix
from calligram.evaluation.rerank import candidate_floors, rerank_candidates
from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.features.images.pixels import PixelInput
from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models.bfan import BFAN, BFANSettings
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import EmbeddingMatcher
from calligram.models.mmca import MMCA, MMCASettings
from calligram.models.scan import SCAN, SCANSettings
from calligram.models.vse import VSE, VSESettings

SIDES = {"image": ImageArchitecture(feature_dim=5), "text": TextArchitecture("states", state_dim=7), "dim": 12}
IMAGES, TEXTS = 9, 14
MATCHERS = {
    "scan": lambda: SCAN(SCANSettings(**SIDES)),
    "bfan": lambda: BFAN(BFANSettings(**SIDES)),
    "mmca": lambda: MMCA(MMCASettings(**SIDES, heads=3, filters=4, alpha=2.0)),
}


@pytest.fixture(scope="module", params=MATCHERS)
def setup(request):
    """A matcher and encodings in which images 1 and 2 are the same, and so are texts 3, 4 and 5."""
    torch.manual_seed(0)
    matcher = MATCHERS[request.param]().eval()
    features, states = torch.randn(IMAGES, 4, 5), torch.randn(TEXTS, 6, 7)
    features[2], states[4], states[5] = features[1], states[3], states[3]
    mask = torch.arange(6) < torch.randint(1, 7, (TEXTS,))[:, None]
    mask[4] = mask[5] = mask[3]
    with torch.no_grad():
        return matcher, EncodedPairing(matcher.encode_images(features), matcher.encode_texts(states, mask))


def matches() -> Matches:
    """Many to many: texts of several images, images of several texts, one text of none."""
    pairs = [(i, t) for t in range(TEXTS - 1) for i in {t % IMAGES, (3 * t) % IMAGES}]
    return Matches.from_pairs([*pairs, (1, 3), (2, 4)], (IMAGES, TEXTS))


def literal(first: np.ndarray, second: np.ndarray, relevant: set[int], depth: int) -> tuple[list[int], bool]:
    """One query: ranks of the relevant items, ascending, irrelevant ones of the same place before."""
    candidates = {i for i in range(len(first)) if sum(other >= first[i] for other in first) <= depth}
    key = [(1, second[i]) if i in candidates else (0, first[i]) for i in range(len(first))]
    order = sorted(range(len(first)), key=lambda i: (key[i], i not in relevant), reverse=True)
    return [place for place, item in enumerate(order, 1) if item in relevant], bool(candidates & relevant)


@pytest.mark.parametrize("depth", [0, TEXTS, 1000])
def test_full_depth_is_exhaustive_ranking_to_the_last_item(setup, depth):
    matcher, encoded = setup
    scores, relevant = score_matrix(matcher, encoded), matches()
    staged = rerank_candidates(matcher, encoded, depth)
    assert staged.scored == 1
    np.testing.assert_array_equal(staged.second, scores)
    for direction, whole in (
        ("i2t", relevant_ranks(scores, relevant)), ("t2i", relevant_ranks(scores.T, relevant.T)),
    ):  # fmt: skip
        ranks, recall = getattr(staged, direction)(relevant)
        np.testing.assert_array_equal(ranks.starts, whole.starts)
        np.testing.assert_array_equal(ranks.ranks, whole.ranks)
        assert recall == 100
    # Not of the relevant ones alone: whatever item is asked for stands where it stood.
    for item in range(TEXTS):
        one = Matches.from_pairs([(i, item) for i in range(IMAGES)], (IMAGES, TEXTS))
        np.testing.assert_array_equal(staged.i2t(one)[0].ranks, relevant_ranks(scores, one).ranks)


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_candidates_are_sorted_by_score_and_the_rest_by_vectors(setup, depth):
    matcher, encoded = setup
    first, second, relevant = score_matrix(EmbeddingMatcher(), encoded), score_matrix(matcher, encoded), matches()
    staged = rerank_candidates(matcher, encoded, depth)
    known = staged.second > -1e30
    np.testing.assert_allclose(staged.second[known], second[known], atol=1e-5)
    assert known.mean() == pytest.approx(staged.scored)
    assert staged.scored < 1
    for name, one, two, found in (("i2t", first, second, relevant), ("t2i", first.T, second.T, relevant.T)):
        # Equal scores are equal whatever tile they were in, or the comparison would be of rounding.
        expected = [literal(one[q], np.round(two[q], 5), set(found.texts_of(q)), depth) for q in range(len(one))]
        rounded = staged._replace(second=np.where(known, np.round(second, 5), staged.second))
        ranks, recall = getattr(rounded, name)(relevant)
        assert ranks.ranks.tolist() == [rank for ranks, _ in expected for rank in ranks]
        asked = [hit for (_, hit), q in zip(expected, range(len(one)), strict=True) if len(found.texts_of(q))]
        assert recall == pytest.approx(100 * np.mean(asked))


def test_tiles_change_nothing(setup, monkeypatch):
    matcher, encoded = setup
    whole = rerank_candidates(matcher, encoded, 3)
    monkeypatch.setattr(rerank, "TILE_ITEMS", (2, 3))
    parted = rerank_candidates(matcher, encoded, 3)
    np.testing.assert_allclose(parted.second, whole.second, rtol=1e-5, atol=1e-5)
    assert parted.scored == whole.scored


def test_another_matchers_vectors_may_find_the_candidates(setup):
    matcher, encoded = setup
    torch.manual_seed(5)
    other = EncodedPairing(
        *(side._replace(vectors=torch.randn(len(side.vectors), 3), parts=None, mask=None) for side in encoded)
    )
    staged = rerank_candidates(matcher, encoded, 3, first=other)
    np.testing.assert_array_equal(staged.first, score_matrix(EmbeddingMatcher(), other))
    candidates = staged.first > staged.image_floors
    assert (candidates.sum(0) == 3).all()
    assert (staged.second[candidates] > -1e30).all()


def test_ties_with_the_first_excluded_candidate_are_excluded():
    scores = np.array([[0.5, 0.9, 0.5, 0.5, 0.1], [0.1, 0.2, 0.3, 0.4, 0.5]], np.float32)
    assert (scores > candidate_floors(scores, 2)[:, None]).sum(1).tolist() == [1, 2]
    assert (scores > candidate_floors(scores, 4)[:, None]).sum(1).tolist() == [4, 4]
    assert (scores > candidate_floors(scores, 5)[:, None]).all()
    assert (scores > candidate_floors(scores, 0)[:, None]).all()


@pytest.fixture(scope="module")
def read(stored_tiny):
    """A matcher of stored features, and one of pixels whose vectors may go before it."""
    pairing = stored_tiny.sentences("test")
    words = Vocabulary.build(pairing.texts.strings, 1)
    torch.manual_seed(0)
    scan = SCAN(
        SCANSettings(
            ImageArchitecture(feature_dim=4),
            TextArchitecture(vocabulary=len(words), word_dim=6, hidden=8, bidirectional=True),
            8,
        )
    )
    vse = VSE(
        VSESettings(
            ImageArchitecture("cnn", channels=(4,)),
            TextArchitecture(vocabulary=len(words), word_dim=6, hidden=8, pooling="last"),
            8,
        )
    ).eval()
    first = Inputs(PixelInput(16), words)
    before = encode_pairing(vse, first, load_pairing(first, pairing))
    return SimpleNamespace(scan=scan, inputs=Inputs(StoredInput("colour"), words), vse=vse, before=before, first=first,
                           pairing=pairing)  # fmt: skip


def test_a_report_has_the_recall_of_the_first_stage_and_the_share_of_scored_pairs(read):
    whole = evaluate_retrieval(read.scan, read.inputs, read.pairing)
    assert whole.stages is None
    for first in (None, read.before):
        full = evaluate_retrieval(read.scan, read.inputs, read.pairing, depth=0, first=first)
        assert full.retrieval == whole.retrieval
        assert full.as_dict()["stages"] == {"depth": 0, "i2t": 100, "t2i": 100, "scored": 1}
        some = evaluate_retrieval(read.scan, read.inputs, read.pairing, depth=2, first=first, within_modality=True)
        assert 0 < some.stages.scored < 1
        assert some.stages.t2i >= some.retrieval.t2i.r1
        assert some.overlap is None  # it would need all pairs
        assert set(some.within) == {"i2i", "t2t"}


def test_candidates_of_a_fold_are_among_its_items(read):
    whole = evaluate_retrieval(read.scan, read.inputs, read.pairing, folds=2)
    full = evaluate_retrieval(read.scan, read.inputs, read.pairing, folds=2, depth=0, first=read.before)
    assert asdict(full.retrieval.t2i) == pytest.approx(asdict(whole.retrieval.t2i))
    halves = [read.pairing.select(np.arange(start, start + 3)) for start in (0, 3)]
    apart = [evaluate_retrieval(read.scan, read.inputs, half, depth=2) for half in halves]
    together = evaluate_retrieval(read.scan, read.inputs, read.pairing, folds=2, depth=2)
    assert together.stages.i2t == pytest.approx(np.mean([part.stages.i2t for part in apart]))
    assert together.retrieval.i2t.meanr == pytest.approx(np.mean([part.retrieval.i2t.meanr for part in apart]))


def test_true_pairs_are_measured_in_the_same_ranking(read):
    visual, text = read.pairing.matches.pairs()
    also = Matches(np.append(visual, [1, 2]), np.append(text, [0, 0]), read.pairing.matches.shape)
    known = Pairing(read.pairing.visuals, read.pairing.texts, read.pairing.matches, also)
    whole = evaluate_retrieval(read.scan, read.inputs, known)
    assert evaluate_retrieval(read.scan, read.inputs, known, depth=0).true == whole.true


def test_a_matcher_of_vectors_is_not_reranked(read):
    with pytest.raises(UserError, match="changes nothing; leave out --depth, or give with --first"):
        evaluate_retrieval(read.vse, read.first, read.pairing, depth=5)
    assert evaluate_retrieval(read.vse, read.first, read.pairing, depth=5, first=read.before).stages is not None
    with pytest.raises(UserError, match="at least 1, or 0 for all, got -1"):
        evaluate_retrieval(read.scan, read.inputs, read.pairing, depth=-1)


def test_scores_in_lower_precision_are_close_and_the_report_names_the_precision(setup, read):
    matcher, encoded = setup
    fine, coarse = score_matrix(matcher, encoded), score_matrix(matcher, encoded, precision="bf16")
    assert coarse.dtype == np.float32
    assert 0 < np.abs(fine - coarse).max() < 0.1 * np.ptp(fine)
    staged = rerank_candidates(matcher, encoded, 3, precision="bf16")
    scored = staged.second > -1e30
    np.testing.assert_allclose(staged.second[scored], coarse[scored], atol=0.05 * np.ptp(fine))
    found = evaluate_retrieval(read.scan, read.inputs, read.pairing, precision="bf16")
    assert found.as_dict()["precision"] == "bf16"
    assert next(read.scan.parameters()).dtype == torch.float32
    with pytest.raises(UserError, match="--precision bf16 is for matchers that score pairs by attention"):
        evaluate_retrieval(read.vse, read.first, read.pairing, precision="bf16")
