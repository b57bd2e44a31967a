from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from calligram.models.matcher import Encoded, Matcher
from calligram.training.batches.batch import Batch
from calligram.training.objectives import caption
from calligram.training.objectives.caption import CaptionObjective

WORDS = torch.tensor([[1, 5, 6, 2, 0], [1, 7, 2, 0, 0], [1, 8, 3, 9, 2]])


def objective(**changes) -> CaptionObjective:
    torch.manual_seed(0)
    return CaptionObjective(6, 12, hidden=5, word_dim=4, dropout=0.0, **changes).double()


def batch(target: torch.Tensor) -> Batch:
    groups = torch.zeros(3, dtype=torch.long)
    return Batch(torch.zeros(2), WORDS, WORDS > 0, target, target.T, groups[:2], groups)


def literal(writer: CaptionObjective, regions: torch.Tensor, words: list[int]) -> torch.Tensor:
    """One image and one caption, word by word."""
    seen, state = writer.reader(writer.squeeze(regions).unsqueeze(0))
    seen, state = seen[0], state[0, 0]
    total = torch.zeros((), dtype=torch.float64)
    for before, after in pairwise(words):
        scores = torch.stack([writer.weigh(torch.tanh(writer.attend(torch.cat([s, state]))))[0] for s in seen])
        context = sum(w * s for w, s in zip(torch.softmax(scores, 0), seen, strict=True))
        given = torch.cat([writer.words(torch.tensor(before)), context])
        state = writer.writer(given.unsqueeze(0), state.unsqueeze(0))[0]
        total = total - torch.log_softmax(writer.out(state), 0)[after]
    return total


def test_the_caption_loss_equals_the_literal_loop():
    writer = objective()
    regions = torch.randn(2, 4, 6, dtype=torch.float64)
    real = torch.tensor([[True] * 4, [True, True, False, False]])
    # The second caption belongs to both images, the third to none.
    target = torch.tensor([[1, 1, -1], [-1, 1, -1]], dtype=torch.int8)
    images = Encoded(regions[:, 0], regions, real)
    found = writer.terms(Matcher(), batch(target), images, images)
    first, second = WORDS[0, :4].tolist(), WORDS[1, :3].tolist()
    own = regions[1, :2]
    expected = literal(writer, regions[0], first) + literal(writer, regions[0], second) + literal(writer, own, second)
    assert list(found) == ["captions"]
    torch.testing.assert_close(found["captions"], expected / 3)


@pytest.mark.parametrize("mask_token", [None, 3])
def test_captions_that_are_decoded_to_the_same_word_have_the_same_loss_and_gradients(mask_token, monkeypatch):
    """On a GPU nothing is cut off, and the matching pairs come with the batch."""
    writer, found = objective(mask_token=mask_token), []
    regions = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    real = torch.tensor([[True] * 4, [True, True, False, False]])
    target = torch.tensor([[1, 1, -1], [-1, 1, 1]], dtype=torch.int8)
    images = Encoded(regions[:, 0], regions, real)
    whole = replace(batch(target), matching=torch.tensor([[0, 0], [0, 1], [1, 1], [1, 2]]))
    for kind, given in (("cuda", batch(target)), ("cuda", whole), ("cpu", whole)):
        monkeypatch.setattr(caption, "GRAPH_DEVICE_TYPE", kind)
        loss = writer.terms(Matcher(), given, images, images)["captions"]
        found.append([loss.detach(), *torch.autograd.grad(loss, [regions, *writer.parameters()])])
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_masked_words_are_not_predicted():
    writer, regions = objective(mask_token=3), torch.randn(1, 4, 6, dtype=torch.float64)
    real, words = torch.ones(1, 4, dtype=torch.bool), WORDS[2:]
    whole = objective().loss(regions, real, words, words > 0)
    found = writer.loss(regions, real, words, words > 0)
    assert 0 < found < whole


def test_a_batch_without_matches_has_zero_loss():
    writer, regions = objective(), torch.randn(2, 4, 6, dtype=torch.float64)
    images = Encoded(regions[:, 0], regions, torch.ones(2, 4, dtype=torch.bool))
    none = batch(torch.full((2, 3), -1, dtype=torch.int8))
    assert writer.terms(Matcher(), none, images, images)["captions"] == 0


def test_the_vector_of_a_matcher_without_parts_is_the_only_part():
    writer, vectors = objective(), torch.randn(2, 6, dtype=torch.float64)
    target = torch.tensor([[1, -1, -1], [-1, 1, -1]], dtype=torch.int8)
    found = writer.terms(Matcher(), batch(target), Encoded(vectors), Encoded(vectors))["captions"]
    expected = literal(writer, vectors[:1], WORDS[0, :4].tolist()) + literal(writer, vectors[1:], WORDS[1, :3].tolist())
    torch.testing.assert_close(found, expected / 2)


def test_the_caption_decoder_learns():
    writer = objective().float()
    regions, real, words = torch.randn(3, 4, 6), torch.ones(3, 4, dtype=torch.bool), WORDS
    optimizer = torch.optim.Adam(writer.parameters(), 0.05)
    for _ in range(40):
        optimizer.zero_grad()
        loss = writer.loss(regions, real, words, words > 0)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 1.0  # of nine words; a uniform guess costs log 12 for each
