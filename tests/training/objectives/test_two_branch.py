from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from calligram.losses.neighbourhood import NeighbourhoodScores, neighbourhood_ranking, neighbours
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.two_branch import (
    TwoBranchEmbedding,
    TwoBranchSettings,
    TwoBranchSimilarity,
    TwoBranchSimilaritySettings,
)
from calligram.training.batches.batch import Batch
from calligram.training.objectives.two_branch import LogisticObjective, NeighbourhoodObjective, balanced_pairs

TOWERS = {"image": ImageArchitecture(feature_dim=5), "text": TextArchitecture("vectors", state_dim=6)}
SIZES = {**TOWERS, "hidden": 16, "dim": 8, "dropout": 0.0}


def batch(images: int = 4, texts_each: int = 2, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    texts = images * texts_each
    target = -torch.ones(images, texts, dtype=torch.int8)
    owner = torch.arange(texts) // texts_each
    target[owner, torch.arange(texts)] = 1
    return Batch(
        torch.randn(images, 5, generator=generator),
        torch.randn(texts, 6, generator=generator),
        torch.ones(texts, 1, dtype=torch.bool),
        target,
        target.T.contiguous(),
        torch.arange(images),
        owner,
    )


def test_the_neighbourhood_objective_is_eq_6_over_distances():
    torch.manual_seed(0)
    matcher, given = TwoBranchEmbedding(TwoBranchSettings(**SIZES)).eval(), batch()
    x = matcher.encode_images(given.images).vectors
    y = matcher.encode_texts(given.texts, given.text_mask).vectors
    weights = (1.0, 2.0, 0.1, 0.2)
    expected = neighbourhood_ranking(
        -torch.cdist(x, y),
        given.image_target,
        given.text_target,
        NeighbourhoodScores(-torch.cdist(x, x), neighbours(given.image_target)),
        NeighbourhoodScores(-torch.cdist(y, y), neighbours(given.text_target)),
        weights=weights,
        margin=0.4,
    )
    found = NeighbourhoodObjective(weights, margin=0.4)(matcher, given)
    assert set(found) == set(expected)
    for name, term in found.items():
        torch.testing.assert_close(term, expected[name] / 8)


def test_neighbourhoods_that_a_batch_brings_replace_those_of_its_targets():
    torch.manual_seed(0)
    matcher, given = TwoBranchEmbedding(TwoBranchSettings(**SIZES)).eval(), batch()
    x = matcher.encode_images(given.images).vectors.detach()
    y = matcher.encode_texts(given.texts, given.text_mask).vectors.detach()
    images = torch.tensor([[0, 1, -1, -1], [1, 0, 0, -1]], dtype=torch.int8)
    texts = torch.tensor([[0, 1, 0, -1, -1, -1, 1, -1]] * 3, dtype=torch.int8)
    given = replace(given, image_neighbours=images, text_neighbours=texts)
    found = NeighbourhoodObjective((1.0, 2.0, 0.1, 0.2), margin=0.4)(matcher, given)
    for name, vectors, target, weight in (("image neighbours", x, images, 0.1), ("text neighbours", y, texts, 0.2)):
        expected = 0.0
        for i, j in (target > 0).nonzero().tolist():
            for k in (target[i] < 0).nonzero().flatten().tolist():
                near, far = (float(torch.dist(vectors[i], vectors[other])) for other in (j, k))
                expected += weight * max(0.0, 0.4 + near - far)
        assert expected > 0
        assert float(found[name]) == pytest.approx(expected / 8, rel=1e-4)


@pytest.mark.parametrize("weights", [(0, 1, 0, 0), (1, 2, 0, 0.2)])
def test_the_embedding_objective_learns(weights):
    assert losses(TwoBranchEmbedding(TwoBranchSettings(**SIZES)), NeighbourhoodObjective(weights))[-1] < 0.02


@pytest.mark.parametrize("drawn", ["texts", "images"])
def test_the_logistic_objective_learns(drawn):
    torch.manual_seed(0)
    matcher = TwoBranchSimilarity(TwoBranchSimilaritySettings(**SIZES))
    found = losses(matcher, LogisticObjective(drawn))
    assert found[0] == pytest.approx(0.69, abs=0.15)
    assert found[-1] < 0.1


def losses(matcher, objective) -> list[float]:
    torch.manual_seed(0)
    given, optimizer, found = batch(), torch.optim.Adam(matcher.parameters(), 0.02), []
    for _ in range(60):
        loss = torch.stack(list(objective(matcher, given).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_positives_and_negatives_are_balanced_within_each_row():
    target = torch.tensor([[1, 1, -1, 0], [-1, -1, -1, 0], [1, 1, 1, 1], [-1, 0, 0, 1]])
    seen = set()
    for seed in range(30):
        torch.manual_seed(seed)
        rows, columns, kinds = balanced_pairs(target)
        assert kinds.tolist() == [1, 1, 1, -1, -1, -1]
        assert torch.equal(target[rows, columns], kinds)
        assert rows.tolist() == [0, 0, 3, 0, 0, 3]
        seen |= set(columns[3:].tolist())
    assert seen == {2, 0}


def test_a_batch_without_negatives_gives_zero():
    torch.manual_seed(0)
    matcher, given = TwoBranchSimilarity(TwoBranchSimilaritySettings(**SIZES)), batch()
    alone = replace(given, image_target=given.image_target.abs(), text_target=given.text_target.abs())
    assert LogisticObjective()(matcher, alone)["logistic"].item() == 0


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="all four weights are zero"):
        NeighbourhoodObjective((0, 0, 0, 0))


def test_neighbourhoods_of_a_matcher_that_reranks_are_compared_by_the_cosines_of_vectors():
    torch.manual_seed(0)
    matcher, given = TwoBranchSimilarity(TwoBranchSimilaritySettings(**SIZES)).eval(), batch()
    images, texts = matcher.encode_images(given.images), matcher.encode_texts(given.texts, given.text_mask)
    x, y = (torch.nn.functional.normalize(side.vectors) for side in (images, texts))
    weights = (1.0, 2.0, 0.1, 0.2)
    expected = neighbourhood_ranking(
        matcher.score(images, texts),
        given.image_target,
        given.text_target,
        NeighbourhoodScores(x @ x.T, neighbours(given.image_target)),
        NeighbourhoodScores(y @ y.T, neighbours(given.text_target)),
        weights=weights,
        margin=0.4,
    )
    found = NeighbourhoodObjective(weights, margin=0.4)(matcher, given)
    assert set(found) == set(expected)
    for name, term in found.items():
        torch.testing.assert_close(term, expected[name] / 8)


def test_a_bounded_score_is_calibrated_by_a_factor_and_a_bias_that_are_trained():
    torch.manual_seed(0)
    matcher, objective = TwoBranchEmbedding(TwoBranchSettings(**SIZES)), LogisticObjective(calibrate=True)
    given = batch()
    images, texts = matcher.eval().encode_images(given.images), matcher.encode_texts(given.texts, given.text_mask)
    torch.manual_seed(1)
    found = objective.terms(matcher, given, images, texts)["logistic"]
    torch.manual_seed(1)
    rows, columns, kinds = balanced_pairs(given.image_target)
    scores = 10 * matcher.score_pairs(images.rows(rows), texts.rows(columns))
    torch.testing.assert_close(found, torch.nn.functional.softplus(-kinds * scores).mean())
    found.backward()
    assert objective.calibration.grad.abs().min() > 0
    assert LogisticObjective().calibration is None
    assert losses(matcher.train(), objective)[-1] < 0.5 * float(found.detach())
