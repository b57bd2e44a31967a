"""What is replayed gives what it gives step by step; on a CPU, with a recording that takes the steps again."""

from __future__ import annotations

import gc
import logging
from copy import deepcopy

import pytest
import torch

from calligram.models import fragment_tiles, mmca, replaying
from calligram.models.fusing import fusing
from calligram.models.mmca import MMCA, MMCASettings

HERE = "cuda" if torch.cuda.is_available() else "cpu"
on_cuda = pytest.mark.skipif(HERE != "cuda", reason="CUDA graphs are recorded on a GPU")


class Again:
    """Takes the steps again, from and to the same places, as a recording does."""

    made = 0

    def __init__(self, work, inputs, parameters, graphs):
        Again.made += 1
        self.work, self.inputs, self.parameters = work, inputs, parameters

    def forward(self):
        with torch.enable_grad():
            self.found = self.work(*self.inputs)
        return self.found.detach()

    def backward(self, gradient):
        all_of = [*self.inputs, *self.parameters]
        found = iter(torch.autograd.grad(self.found, [t for t in all_of if t.requires_grad], gradient))
        gradients = [next(found) if t.requires_grad else None for t in all_of]
        return gradients[: len(self.inputs)], gradients[len(self.inputs) :]


@pytest.fixture
def stepped(monkeypatch):
    """A CPU that can record."""
    monkeypatch.setattr(replaying, "DEVICE", "cpu")
    monkeypatch.setattr(replaying, "record", Again)
    monkeypatch.setattr(mmca, "FEW", 0)
    monkeypatch.setattr(Again, "made", 0)


def matcher(device="cpu", dim=16):
    torch.manual_seed(0)
    return MMCA(
        MMCASettings(vocabulary=0, dim=dim, feature_dim=5, text="states", state_dim=7, heads=2, filters=4, alpha=0.7)
    ).to(device)


def sides(found, images=3, texts=4, words=6, seed=1, device="cpu"):
    torch.manual_seed(seed)
    mask = torch.arange(words) < torch.randint(1, words + 1, (texts, 1))
    features, states = torch.randn(images, 3, 5), torch.randn(texts, words, 7)
    features[0, -1] = 0
    return found.encode_images(features.to(device)), found.encode_texts(states.to(device), mask.to(device))


def step(found, on, **sizes):
    """Scores, and gradients of all parameters."""
    with replaying.replaying(on):
        scores = found.score(*sides(found, **sizes))
    found.zero_grad()
    scores.square().sum().backward()
    return scores.detach(), *(p.grad.clone() for p in found.parameters())


def same(one, two, **limits):
    for left, right in zip(one, two, strict=True):
        torch.testing.assert_close(left, right, **limits)


def recorded(found, part="pairs"):
    return len(replaying._GRAPHS[getattr(found, part)])


@pytest.mark.usefixtures("stepped")
def test_a_shape_is_recorded_when_it_comes_again_and_words_are_filled_up():
    found = matcher()
    for words, seed, kept in ((6, 1, 0), (6, 2, 1), (8, 3, 1), (5, 4, 1), (9, 5, 1), (12, 6, 2), (5, 7, 2), (4, 8, 2)):
        same(step(found, True, words=words, seed=seed), step(found, False, words=words, seed=seed))
        assert recorded(found) == kept, words
    step(found, True, texts=5)
    step(found, True, texts=5)
    assert recorded(found) == recorded(found, "ngrams") == 3
    assert recorded(found, "regions") == 1  # images were as many all along
    assert Again.made == 7


@pytest.mark.usefixtures("stepped")
def test_gradients_of_several_steps_add_up():
    found, scores = matcher(), []
    step(found, True)
    for on in (False, True):
        found.zero_grad()
        for seed in (1, 2, 3):
            with replaying.replaying(on):
                found.score(*sides(found, seed=seed)).square().sum().backward()
        scores.append([p.grad.clone() for p in found.parameters()])
    same(*scores)
    assert recorded(found) == 1


@pytest.mark.usefixtures("stepped")
def test_between_a_replay_and_its_gradient_others_run_as_they_are():
    found, scores = matcher(), []
    step(found, True)
    step(found, True)
    turns = replaying._GRAPHS[found.pairs]
    for on in (False, True):
        before = turns.turn
        with replaying.replaying(on):
            one, two = (found.score(*sides(found, seed=seed)).square().sum() for seed in (1, 2))
        assert turns.turn - before == on
        found.zero_grad()
        (one + 2 * two).backward()
        scores.append([p.grad.clone() for p in found.parameters()])
    same(*scores)
    with replaying.replaying():
        left = found.score(*sides(found))  # no gradient is ever asked of it
        before = turns.turn
        del left
        gc.collect()
        found.score(*sides(found))
    assert turns.turn == before + 1


@pytest.mark.usefixtures("stepped")
def test_a_gradient_that_is_asked_for_too_late_is_refused():
    found = matcher()
    step(found, True)
    with replaying.replaying():
        old = found.score(*sides(found)).sum()
        old.backward(retain_graph=True)
        new = found.score(*sides(found))
        with pytest.raises(RuntimeError, match="after another turn; unset CALLIGRAM_GRAPHS"):
            old.backward()
    new.sum().backward()


@pytest.mark.usefixtures("stepped")
def test_parameters_that_moved_or_are_held_still_are_recorded_anew():
    found = matcher()
    step(found, True)
    step(found, True)
    found.load_state_dict({k: v + 0.1 for k, v in found.state_dict().items()})
    same(step(found, True), step(found, False))
    assert (recorded(found), Again.made) == (1, 3)  # with both sides' own
    found.pairs.unit.query.weight.data = found.pairs.unit.query.weight.data.clone()
    same(step(found, True), step(found, False))
    assert (recorded(found), Again.made) == (1, 3 + 1)
    found.pairs.unit.query.weight.requires_grad_(False)
    with replaying.replaying():
        found.score(*sides(found)).sum().backward()
    assert (recorded(found), Again.made) == (1, 3 + 2)
    other = deepcopy(found)
    assert other.pairs not in replaying._GRAPHS


@pytest.mark.usefixtures("stepped")
def test_what_is_too_large_or_without_a_gradient_or_one_shape_too_many_is_not_recorded(monkeypatch):
    found = matcher()
    with torch.no_grad(), replaying.replaying():
        found.score(*sides(found))
    assert found.pairs not in replaying._GRAPHS
    monkeypatch.setattr(fragment_tiles, "TILE", {"cpu": 1})
    same(step(found, True), step(found, False))
    assert found.pairs not in replaying._GRAPHS
    monkeypatch.undo()
    monkeypatch.setattr(replaying, "DEVICE", "cpu")
    monkeypatch.setattr(replaying, "record", Again)
    monkeypatch.setattr(replaying, "MOST", 1)
    for texts in (3, 3, 4, 4):
        same(step(found, True, texts=texts), step(found, False, texts=texts))
    assert recorded(found) == 1


@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize("where", ["__init__", "forward"])
def test_what_cannot_be_recorded_or_replayed_runs_step_by_step_and_says_so_once(monkeypatch, caplog, where):
    def broken(*_):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Again, where, broken)
    found = matcher()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            same(step(found, True), step(found, False))
    assert [r.message for r in caplog.records] == [
        f"{name} cannot be replayed and runs step by step: no room"
        for name in ("TransformerUnit", "NgramText", "PairModule")
    ]
    assert recorded(found) == 0


@on_cuda
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_cuda_graphs_give_scores_and_gradients_of_single_steps(lower, compiled, caplog):
    found = matcher("cuda", dim=64)
    limits = {"atol": 0.03, "rtol": 0.05} if lower else {"atol": 1e-4, "rtol": 1e-3}
    with caplog.at_level(logging.WARNING), torch.autocast("cuda", torch.bfloat16, enabled=lower), fusing(compiled):
        for turn, words in enumerate((6, 7, 8, 5, 12, 9, 12, 6)):
            sizes = {"images": 5, "texts": 7, "words": words, "seed": turn, "device": "cuda"}
            same(step(found, True, **sizes), step(found, False, **sizes), **limits)
            with torch.no_grad():
                for p in found.parameters():
                    p += 0.01 * torch.randn_like(p)
    assert recorded(found) == 2
    assert not caplog.records


@on_cuda
def test_gradients_of_cuda_graphs_add_up_over_steps():
    found = matcher("cuda")
    for seed in (1, 2):
        step(found, True, seed=seed, device="cuda")
    scores = []
    for on in (False, True):
        found.zero_grad()
        for seed in (1, 2, 3):
            with replaying.replaying(on):
                found.score(*sides(found, seed=seed, device="cuda")).square().sum().backward()
        scores.append([p.grad.clone() for p in found.parameters()])
    same(*scores, atol=1e-4, rtol=1e-3)
