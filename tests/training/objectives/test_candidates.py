"""Losses over the candidate pairs of a batch, with real matchers."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from calligram.losses.contrastive import symmetric_info_nce
from calligram.losses.ranking import bidirectional_ranking_loss
from calligram.models.bfan import BFAN, BFANSettings
from calligram.models.catalog import describe
from calligram.models.ensemble import Ensemble, EnsembleSettings
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import EmbeddingMatcher
from calligram.models.mmca import MMCA, MMCASettings
from calligram.models.scan import SCAN, SCANSettings
from calligram.training.batches.batch import Batch
from calligram.training.objectives.candidates import RetrieveRerankObjective, candidate_mask
from calligram.training.objectives.objective import InfoNCEObjective, RankingObjective
from calligram.training.objectives.offline import OfflineObjective, OfflineTerms

SIDES = {"image": ImageArchitecture(feature_dim=5), "text": TextArchitecture("states", state_dim=7), "dim": 8}


def mmca():
    return MMCA(MMCASettings(**SIDES, heads=2, filters=4, alpha=0.7))


def ensemble():
    members = tuple(json.dumps(describe(member)) for member in (mmca(), SCAN(SCANSettings(**SIDES))))
    return Ensemble(EnsembleSettings(members))


MATCHERS = {"mmca": mmca, "scan": lambda: SCAN(SCANSettings(**SIDES)), "bfan": lambda: BFAN(BFANSettings(**SIDES))}


def batch(images=6, texts=9, seed=1):
    """Texts of one and of two images, an image without texts, and ignored pairs."""
    torch.manual_seed(seed)
    target = -torch.ones(images, texts, dtype=torch.int64)
    target[torch.arange(texts) % (images - 1), torch.arange(texts)] = 1
    target[2, 0] = 1
    target[4, 5] = 0
    other = target.T.clone()
    other[7, 3] = 0  # ignored with the text as anchor only
    mask = torch.arange(4) < torch.randint(
        2, 5, (texts, 1)
    )  # with one word all regions are equal, and bfan's focus is a tie
    groups = torch.zeros(0, dtype=torch.int64)
    drawn = torch.tensor([[0, 0, 5, 1, 1, 4], [3, 3, 4, 2, 2, 4]])
    return Batch(torch.randn(images, 3, 5), torch.randn(texts, 4, 7), mask, target, other, groups, groups, drawn)


def literal_candidates(cosines, image_target, text_target, count):
    chosen = {(i, t) for i, t in (image_target > 0).nonzero().tolist()}
    for i, row in enumerate(cosines.tolist()):
        wrong = [t for t in range(len(row)) if image_target[i, t] < 0]
        chosen |= {(i, t) for t in sorted(wrong, key=lambda t: -row[t])[:count]}
    for t, column in enumerate(cosines.T.tolist()):
        wrong = [i for i in range(len(column)) if text_target[t, i] < 0]
        chosen |= {(i, t) for i in sorted(wrong, key=lambda i: -column[i])[:count]}
    return chosen


@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_candidates_are_matches_and_the_hardest_negatives_of_each_item(count):
    given = batch()
    images, texts = torch.randn(6, 4), torch.randn(9, 4)
    found = candidate_mask(images, texts, given.image_target, given.text_target, count)
    cosines = F.normalize(images, dim=1) @ F.normalize(texts, dim=1).T
    expected = literal_candidates(cosines, given.image_target, given.text_target, count)
    assert {(i, t) for i, t in found.nonzero().tolist()} == expected
    assert not found[4, 5]


def test_an_item_without_negatives_has_its_matches_only():
    target = torch.tensor([[1, 1], [1, 0]])
    found = candidate_mask(torch.randn(2, 3), torch.randn(2, 3), target, target.T, 2)
    assert found.tolist() == [[True, True], [True, False]]


def test_half_precision_selects_the_same_candidates():
    torch.manual_seed(0)
    images, texts = (torch.randn(8) + 0.1 * torch.randn(count, 8) for count in (40, 60))
    target = 2 * torch.eye(40, 60, dtype=torch.int64) - 1
    expected = candidate_mask(images, texts, target, target.T, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(candidate_mask(images, texts, target, target.T, 4), expected)


def objectives():
    return [RankingObjective(0.2), RankingObjective(0.2, 1), InfoNCEObjective(0.1), OfflineObjective(OfflineTerms())]


def gradients(terms, matcher):
    found = torch.autograd.grad(sum(terms.values()), list(matcher.parameters()), allow_unused=True)
    return [torch.zeros(1) if g is None else g for g in found]


@pytest.mark.parametrize("name", [*MATCHERS, "ensemble"])
@pytest.mark.parametrize("number", range(4), ids=["sum", "hardest", "infonce", "offline"])
def test_with_as_many_candidates_as_items_the_loss_is_that_of_all_pairs_plus_that_of_vectors(name, number):
    torch.manual_seed(0)
    matcher, given, objective = {**MATCHERS, "ensemble": ensemble}[name](), batch(), objectives()[number]
    encoded = objective.encode(matcher, given)
    whole = objective.terms(matcher, given, *encoded)
    vectors = objective.terms(EmbeddingMatcher(), given, *encoded)
    found = RetrieveRerankObjective(objective, 100).terms(matcher, given, *encoded)
    assert set(found) == {*whole, *(f"first_{key}" for key in vectors)}
    for key, value in whole.items():
        torch.testing.assert_close(found[key], value)
        torch.testing.assert_close(found[f"first_{key}"], vectors[key])
    expected = gradients({**whole, **{f"first_{k}": v for k, v in vectors.items()}}, matcher)
    largest = max(gradient.abs().max().item() for gradient in expected)
    again = RetrieveRerankObjective(objective, 100)
    for one, two in zip(gradients(again(matcher, given), matcher), expected, strict=True):
        # The rounding of a sum depends on its largest terms, and on the processor.
        torch.testing.assert_close(one, two, atol=2e-5 * largest, rtol=1e-4)


@pytest.mark.parametrize("name", MATCHERS)
def test_with_few_candidates_all_other_pairs_are_ignored(name):
    torch.manual_seed(0)
    matcher, given = MATCHERS[name](), batch()
    objective = InfoNCEObjective(0.1)
    images, texts = objective.encode(matcher, given)
    cosines = EmbeddingMatcher().score(images, texts)
    chosen = literal_candidates(cosines, given.image_target, given.text_target, 2)
    near = torch.zeros(6, 9, dtype=torch.int64)
    for pair in chosen:
        near[pair] = 1
    assert 9 < near.sum() < 40
    targets = given.image_target * near, given.text_target * near.T
    scores = matcher.score(images, texts)
    found = RetrieveRerankObjective(objective, 2).terms(matcher, given, images, texts)
    torch.testing.assert_close(found["info_nce"], symmetric_info_nce(scores, *targets, temperature=0.1))
    whole = symmetric_info_nce(cosines, given.image_target, given.text_target, temperature=0.1)
    torch.testing.assert_close(found["first_info_nce"], whole)
    hinge = RetrieveRerankObjective(RankingObjective(0.3, 1), 2, 0.0).terms(matcher, given, images, texts)
    assert set(hinge) == {"ranking"}
    torch.testing.assert_close(hinge["ranking"], bidirectional_ranking_loss(scores, *targets, margin=0.3, top_k=1) / 10)


def test_pairs_that_are_not_candidates_are_not_scored(monkeypatch):
    torch.manual_seed(0)
    matcher, given, asked = mmca(), batch(), []
    monkeypatch.setattr(matcher, "score", lambda *_: pytest.fail("the grid was scored"))
    real = matcher.score_some

    def watched(images, texts, rows, columns):
        asked.append(sorted(zip(rows.tolist(), columns.tolist(), strict=True)))
        return real(images, texts, rows, columns)

    monkeypatch.setattr(matcher, "score_some", watched)
    objective = RetrieveRerankObjective(RankingObjective(0.2), 1)
    images, texts = objective.encode(matcher, given)
    objective.terms(matcher, given, images, texts)
    cosines = EmbeddingMatcher().score(images, texts)
    assert asked == [sorted(literal_candidates(cosines, given.image_target, given.text_target, 1))]


def test_both_losses_have_separate_learnt_temperatures():
    torch.manual_seed(0)
    objective = RetrieveRerankObjective(InfoNCEObjective(0.1), 2, 0.5)
    sum(objective(mmca(), batch()).values()).backward()
    one, two = objective.first.log_scale.grad, objective.second.log_scale.grad
    assert one != 0
    assert two != 0
    assert one != two


def test_the_loss_of_vectors_can_be_added_to_that_of_all_scores():
    torch.manual_seed(0)
    matcher, given, objective = mmca(), batch(), RankingObjective(0.2)
    encoded = objective.encode(matcher, given)
    found = RetrieveRerankObjective(objective, 0, 0.25).terms(matcher, given, *encoded)
    torch.testing.assert_close(found["ranking"], objective.terms(matcher, given, *encoded)["ranking"])
    vectors = objective.terms(EmbeddingMatcher(), given, *encoded)["ranking"]
    torch.testing.assert_close(found["first_ranking"], 0.25 * vectors)
    assert RetrieveRerankObjective(objective).first is None


@pytest.mark.parametrize("name", MATCHERS)
def test_bf16_stays_close(name):
    torch.manual_seed(0)
    matcher, given = MATCHERS[name](), batch()
    objective = RetrieveRerankObjective(InfoNCEObjective(0.5), 3)
    exact = objective(matcher, given)
    with torch.autocast("cpu", torch.bfloat16):
        found = objective(matcher, given)
    sum(found.values()).backward()
    for key, value in exact.items():
        torch.testing.assert_close(found[key].float(), value, atol=0.05, rtol=0.05)
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in matcher.parameters())
