from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, top_k_accuracy_score

from calligram.data.matches import Matches
from calligram.errors import NotFiniteError
from calligram.evaluation import recall
from calligram.evaluation.recall import mean_of, recall_at, relevant_ranks, retrieval_metrics
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models.matcher import EmbeddingMatcher, Encoded


def random_case(seed: int, queries: int = 12, items: int = 30, share: float = 0.15, ties: bool = True):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 6, (queries, items)).astype(np.float32) if ties else rng.random((queries, items))
    relevant = rng.random((queries, items)) < share
    relevant[0] = False
    return scores, relevant, Matches(*np.nonzero(relevant), relevant.shape)


def literal_ranks(scores, relevant, ignored=None):
    """Sort each row with irrelevant items first among equals, and read off where the relevant ones stand."""
    out = []
    for q in range(len(scores)):
        items = [c for c in range(scores.shape[1]) if ignored is None or not ignored[q, c]]
        items.sort(key=lambda c: (-scores[q, c], relevant[q, c]))
        out += [rank for rank, c in enumerate(items, 1) if relevant[q, c]]
    return out


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.05, 0.15, 0.6])
def test_ranks_of_relevant_items_are_those_of_a_pessimistic_sort(seed, share):
    scores, relevant, matches = random_case(seed, share=share)
    found = relevant_ranks(scores, matches)
    assert found.ranks.tolist() == literal_ranks(scores, relevant)
    assert found.queries == (relevant.any(1)).sum()


def test_ignored_items_leave_the_ranking():
    scores, relevant, matches = random_case(3)
    ignored = np.random.default_rng(9).random(scores.shape) < 0.2
    found = relevant_ranks(scores, matches, Matches(*np.nonzero(ignored), scores.shape))
    assert found.ranks.tolist() == literal_ranks(scores, relevant, ignored)


def test_blocks_equal_the_whole(monkeypatch):
    scores, _, matches = random_case(4, queries=40)
    whole = relevant_ranks(scores, matches)
    monkeypatch.setattr(recall, "BLOCK_SCORES", 70)
    assert relevant_ranks(scores, matches).ranks.tolist() == whole.ranks.tolist()


def test_a_constant_scorer_is_last_and_a_perfect_one_first():
    _, relevant, matches = random_case(5)
    constant = relevant_ranks(np.zeros(relevant.shape), matches)
    counts = relevant.sum(1)
    assert constant.best.tolist() == [relevant.shape[1] - n + 1 for n in counts if n]
    perfect = retrieval_metrics(relevant_ranks(relevant.astype(float), matches))
    assert (perfect.r1, perfect.map, perfect.map_r, perfect.r_precision, perfect.medr) == (100, 100, 100, 100, 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_refused(bad):
    scores, _, matches = random_case(6, ties=False)
    scores[3, 4] = bad
    with pytest.raises(NotFiniteError, match=r"1 scores are not finite \(NaN or infinite\), the first in row 3"):
        relevant_ranks(scores, matches)


def test_average_precision_and_recall_agree_with_scikit_learn():
    scores, relevant, matches = random_case(7, queries=25, items=60, ties=False)
    found = retrieval_metrics(relevant_ranks(scores, matches))
    rows = [q for q in range(25) if relevant[q].any()]
    expected = np.mean([average_precision_score(relevant[q], scores[q]) for q in rows])
    assert found.map == pytest.approx(100 * expected)
    single = np.eye(25, 60, dtype=bool)
    found = retrieval_metrics(relevant_ranks(scores, Matches(*np.nonzero(single), single.shape)))
    for k, value in ((1, found.r1), (5, found.r5), (10, found.r10)):
        expected = top_k_accuracy_score(np.arange(25), scores, k=k, labels=np.arange(60))
        assert value == pytest.approx(100 * expected)


def test_precision_at_r_by_hand():
    """Relevant at ranks 1, 3 and 4 of R = 3: R-precision 2/3, mAP@R (1/1 + 2/3) / 3, mAP (1 + 2/3 + 3/4) / 3."""
    scores = np.array([[0.9, 0.8, 0.7, 0.6, 0.5]])
    matches = Matches([0, 0, 0], [0, 2, 3], (1, 5))
    found = retrieval_metrics(relevant_ranks(scores, matches))
    assert found.r_precision == pytest.approx(200 / 3)
    assert found.map_r == pytest.approx(100 * (1 + 2 / 3) / 3)
    assert found.map == pytest.approx(100 * (1 + 2 / 3 + 3 / 4) / 3)


def test_recall_and_folds():
    assert recall_at(np.array([1, 3, 11]), (1, 5, 10)) == pytest.approx({1: 100 / 3, 5: 200 / 3, 10: 200 / 3})
    scores, _, matches = random_case(8)
    one = retrieval_metrics(relevant_ranks(scores, matches))
    assert mean_of([one, one]).r5 == pytest.approx(one.r5)
    assert mean_of([one, one]).queries == 2 * one.queries


def test_nothing_relevant_is_an_error():
    with pytest.raises(ValueError, match="no query has a relevant item"):
        retrieval_metrics(relevant_ranks(np.zeros((2, 3)), Matches([], [], (2, 3))))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the next batch is prepared ahead on a GPU")
def test_images_encoded_on_a_gpu_are_in_order():
    class Rows:
        def __len__(self):
            return 300

        def take(self, rows):
            return torch.from_numpy(rows).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 64, 64).contiguous()

    class Means(EmbeddingMatcher):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))

        def encode_images(self, images, mask=None):
            return Encoded(self.scale * images.mean((2, 3)))

    inputs = Inputs(PixelInput(64, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)), Vocabulary.build(["a"], 1))
    found = recall.encode_images(Means().cuda(), inputs, Rows(), batch=32).vectors
    expected = torch.arange(300, device="cuda").to(torch.uint8).float() / 255
    torch.testing.assert_close(found[:, 0], expected)
