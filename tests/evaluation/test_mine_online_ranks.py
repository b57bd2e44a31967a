from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from calligram.data.matches import Matches
from calligram.evaluation.mine import chance_within, expected_rank, mine_negatives, online_ranks
from calligram.evaluation.recall import EncodedPairing
from calligram.models.matcher import EmbeddingMatcher, Encoded


def test_expectations_are_those_of_counting_all_batches():
    best = [min(batch) for batch in combinations(range(1, 10), 3)]
    assert expected_rank(9, 3) == pytest.approx(np.mean(best))
    assert chance_within(2, 9, 3) == pytest.approx(np.mean([b <= 2 for b in best]))
    assert chance_within(8, 9, 3) == 1.0


def test_the_papers_numbers():
    """About 4000 of 500K with batches of 128, of which some 2% lie in the first hundred."""
    assert expected_rank(500_000, 127) == pytest.approx(3906, abs=1)
    assert 0.02 < chance_within(100, 500_000, 127) < 0.026


def literal(scores, matches, pairs):
    ranks = []
    for image in sorted(set(pairs[:, 0])):
        own = set(matches.texts_of(image))
        others = [t for t in set(pairs[:, 1]) if t not in own]
        hardest = max(scores[image, t] for t in others)
        ranks.append(1 + sum(scores[image, t] > hardest for t in range(scores.shape[1]) if t not in own))
    return ranks


def test_measured_ranks_are_those_of_the_literal_loop():
    generator = torch.Generator().manual_seed(0)
    sides = EncodedPairing(*(Encoded(torch.randn(n, 4, generator=generator)) for n in (20, 50)))
    matches = Matches(np.arange(50) % 20, np.arange(50), (20, 50)).plus(Matches([1, 2], [0, 0], (20, 50)))
    scores = EmbeddingMatcher().score(*sides).numpy()
    batches = [np.stack([np.arange(8) + first, np.arange(8) + first], axis=1) for first in (0, 8)]
    of_images, of_texts = online_ranks(EmbeddingMatcher(), sides, matches, batches)
    by_image = [r for b in batches for r in literal(scores, matches, b)]
    by_text = [r for b in batches for r in literal(scores.T, matches.T, b[:, ::-1])]
    assert of_images.mean == pytest.approx(np.mean(by_image))
    assert of_images.median == np.median(by_image)
    assert of_texts.mean == pytest.approx(np.mean(by_text))
    assert of_texts.within == 1.0
    assert of_images.anchors == 16


def test_the_share_of_harder_draws_is_that_of_counting_all_draws_from_the_lists():
    generator = torch.Generator().manual_seed(0)
    sides = EncodedPairing(*(Encoded(torch.randn(n, 4, generator=generator)) for n in (20, 50)))
    matches = Matches(np.arange(50) % 20, np.arange(50), (20, 50))
    scores, pairs = EmbeddingMatcher().score(*sides).numpy(), np.stack([np.arange(8), np.arange(8)], axis=1)
    found = online_ranks(EmbeddingMatcher(), sides, matches, [pairs], lengths=(5, 3))
    lists = mine_negatives(EmbeddingMatcher(), sides, matches, texts=5, images=3)
    for direction, grid, relation, mined in zip(found, (scores, scores.T), (matches, matches.T), lists, strict=True):
        harder = []
        for anchor in range(8):
            own = set(relation.texts_of(anchor))
            hardest = max(grid[anchor, other] for other in range(8) if other not in own)
            harder += [grid[anchor, drawn] > hardest for drawn in mined[anchor].tolist()]
        assert 0 < direction.harder < 1
        assert direction.harder == pytest.approx(np.mean(harder))


def test_random_scores_give_the_expectation():
    """A matcher that knows nothing: the measured mean rank is that of random draws."""
    generator = torch.Generator().manual_seed(0)
    sides = EncodedPairing(*(Encoded(torch.randn(400, 64, generator=generator)) for _ in range(2)))
    matches = Matches(np.arange(400), np.arange(400), (400, 400))
    order = np.random.default_rng(0).permutation(400)
    found, _ = online_ranks(EmbeddingMatcher(), sides, matches, [np.stack([o, o], 1) for o in np.split(order, 20)])
    assert found.expected_mean == pytest.approx(20.0)
    assert found.mean == pytest.approx(20.0, rel=0.15)
