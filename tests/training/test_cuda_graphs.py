"""Replays of CUDA graphs equal normal steps; on a CPU, with a stand-in that runs the step again."""

from __future__ import annotations

import gc
import logging
from copy import deepcopy

import pytest
import torch

from calligram.device import use_compile
from calligram.training import cuda_graphs
from calligram.training.objectives.candidates import RetrieveRerankObjective
from calligram.training.objectives.objective import InfoNCEObjective, RankingObjective

HERE = "cuda" if torch.cuda.is_available() else "cpu"
on_cuda = pytest.mark.skipif(HERE != "cuda", reason="CUDA graphs need a GPU")


OBJECTIVES = ("instance", "distilled", "hardest", "infonce", "both", "staged")


def same(one, two, **limits):
    torch.testing.assert_close(one[0], two[0], check_dtype=False, **limits)
    alike(one[1], two[1], **limits)


def alike(one, two, **limits):
    for left, right in zip(one, two, strict=True):
        assert (left is None) == (right is None)
        if left is not None:
            torch.testing.assert_close(left, right, **limits)


def about_alike(one, two):
    """Equal within eight bits, and for sums in another order."""
    for left, right in zip(one, two, strict=True):
        assert float((left - right).norm()) <= 0.05 * float(right.norm()) + 1e-3


@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_shape_is_captured_when_it_repeats(objective, trained, again):
    found = trained(objective)
    for words, seed, kept in ((6, 1, 0), (6, 2, 1), (8, 3, 1), (5, 4, 1), (9, 5, 1), (12, 6, 2), (5, 7, 2), (4, 8, 2)):
        same(found.step(True, words=words, seed=seed), found.step(False, words=words, seed=seed))
        assert found.recorded == kept, words
    found.step(True, texts=3)
    found.step(True, texts=3)
    assert found.recorded == again.made == 3


@pytest.mark.usefixtures("stepped")
def test_random_numbers_equal_those_without_graphs(trained):
    found = trained()
    for seed in (1, 2, 3):
        same(found.step(True, words=8, seed=seed), found.step(False, words=8, seed=seed))
    assert found.recorded == 1
    found = trained()
    before = found.step(True, words=6)
    assert found.recorded == 0
    same(before, found.step(True, words=6))
    assert found.recorded == 1


@pytest.mark.usefixtures("stepped")
def test_gradients_of_several_replays_accumulate(trained):
    found, sums = trained(), []
    found.step(True, words=8)
    for on in (False, True):
        for p in found.learning():
            p.grad = None
        for seed in (1, 2, 3):
            found.loss(on, words=8, seed=seed)[1].backward()
        sums.append([p.grad.clone() for p in found.learning()])
    alike(*sums)
    assert found.recorded == 1


@pytest.mark.usefixtures("stepped")
def test_calls_between_a_replay_and_its_backward_pass_run_without_graphs(trained):
    found, sums = trained(), []
    found.step(True, words=8)
    found.step(True, words=8)
    turns = cuda_graphs._GRAPHS[found.objective]
    for on in (False, True):
        before = turns.replays
        one, two = (found.loss(on, words=8, seed=seed)[1] for seed in (1, 2))
        assert turns.replays - before == on
        for p in found.learning():
            p.grad = None
        (one + 2 * two).backward()
        sums.append([p.grad.clone() for p in found.learning()])
    alike(*sums)
    left = found.loss(True, words=8)  # its backward pass never runs
    before = turns.replays
    del left
    gc.collect()
    found.loss(True, words=8)
    assert turns.replays == before + 1


@pytest.mark.usefixtures("stepped")
def test_a_late_backward_pass_is_refused(trained):
    found = trained()
    found.step(True)
    old = found.loss(True)[1]
    old.backward(retain_graph=True)
    new = found.loss(True)[1]
    with pytest.raises(RuntimeError, match="not possible with CUDA graphs; use speed=plain"):
        old.backward()
    new.backward()


@pytest.mark.usefixtures("stepped")
def test_moved_or_frozen_parameters_are_captured_again(trained, again):
    found = trained()
    found.step(True, words=8)
    found.step(True, words=8)
    found.matcher.load_state_dict({k: v + 0.1 for k, v in found.matcher.state_dict().items()})
    same(found.step(True, words=8), found.step(False, words=8))
    assert (found.recorded, again.made) == (1, 1)
    weight = found.matcher.pairs.unit.query.weight
    weight.data = weight.data.clone()
    same(found.step(True, words=8), found.step(False, words=8))
    assert (found.recorded, again.made) == (1, 2)
    weight.requires_grad_(False)
    same(found.step(True, words=8), found.step(False, words=8))
    assert (found.recorded, again.made) == (1, 3)
    assert deepcopy(found.objective) not in cuda_graphs._GRAPHS


@pytest.mark.usefixtures("stepped")
def test_graphs_that_are_not_needed_are_deleted_and_captured_when_they_are(trained, again, monkeypatch):
    found = trained()
    for compiled in (True, False):
        monkeypatch.setattr(cuda_graphs, "compile_enabled", lambda on=compiled: on)  # to compile takes half a minute
        found.step(True, words=8)
        found.step(True, words=8)
    assert (found.recorded, again.made) == (2, 2)
    cuda_graphs.delete_unused_graphs(found.objective, compiled=False)
    assert found.recorded == 1
    same(found.step(True, words=8), found.step(False, words=8))
    assert again.made == 2
    cuda_graphs.delete_graphs(found.objective)
    cuda_graphs.delete_graphs(found.objective)
    assert found.recorded is None
    found.step(True, words=8)
    same(found.step(True, words=8), found.step(False, words=8))
    assert (found.recorded, again.made) == (1, 3)


@pytest.mark.usefixtures("stepped")
def test_unused_parameters_have_no_gradient(trained):
    found = trained(alpha=0.0)
    found.step(True, words=8)
    same(found.step(True, words=8), found.step(False, words=8))
    assert found.recorded == 1
    assert found.matcher.pairs.unit.query.weight.grad is None


@pytest.mark.usefixtures("stepped")
def test_no_graph_is_captured_without_gradients_or_for_unsafe_objectives_or_too_many_shapes(monkeypatch, trained):
    found = trained()
    with torch.no_grad():
        found.loss(True)
    assert found.recorded is None
    for objective in (
        RankingObjective(0.2),
        RankingObjective(0.2, 1, draw=True),
        RetrieveRerankObjective(InfoNCEObjective(), 2),
    ):
        found.objective = objective
        found.step(True)
        assert found.recorded is None
    found.objective = RankingObjective(0.2, 1)
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 1)
    for texts in (3, 3, 4, 4):
        same(found.step(True, texts=texts, words=8), found.step(False, texts=texts, words=8))
    assert found.recorded == 1


@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize("where", ["__init__", "forward"])
def test_a_failed_capture_or_replay_runs_without_graphs_and_is_logged_once(monkeypatch, caplog, where, trained, again):
    def broken(*_):
        try:
            raise torch.OutOfMemoryError("no room")
        except torch.OutOfMemoryError:
            raise RuntimeError("the capture failed")  # noqa: B904  as torch does at the end of a capture

    monkeypatch.setattr(again, where, broken)
    found = trained()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            same(found.step(True, words=8), found.step(False, words=8))
    (record,) = caplog.records
    expected = "RankingObjective cannot use CUDA graphs and runs without them: no room (test_cuda_graphs.py, line "
    assert record.message.startswith(expected)
    assert found.recorded == 0


def test_words_are_padded_to_a_multiple_of_four_and_vectors_are_not():
    mask = torch.tensor([[True, True, True], [True, False, False]])
    ids, padded = cuda_graphs.pad_words(torch.tensor([[5, 6, 7], [8, 0, 0]]), mask)
    assert ids.tolist() == [[5, 6, 7, 0], [8, 0, 0, 0]]
    assert padded.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert cuda_graphs.pad_words(torch.ones(2, 3, 5), mask)[0].shape == (2, 4, 5)
    vectors, one = torch.ones(2, 6), torch.ones(2, 1, dtype=torch.bool)
    assert cuda_graphs.pad_words(vectors, one) == (vectors, one)


def test_capture_does_not_change_running_statistics():
    norm = torch.nn.BatchNorm1d(3)
    with cuda_graphs.preserve_state(list(norm.buffers())):
        norm(torch.randn(8, 3))
    assert norm.running_mean.tolist() == [0.0] * 3
    assert norm.num_batches_tracked == 0


@on_cuda
@pytest.mark.parametrize("objective", ["hardest", "staged"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_cuda_graphs_give_the_same_terms_and_gradients(lower, compiled, objective, caplog, trained):
    found, kept = trained(objective, "cuda", dim=64, lower=lower), []
    with caplog.at_level(logging.INFO, "calligram"), use_compile(compiled):
        for turn, words in enumerate((8, 8, 12, 12, 8, 12, 8)):
            kept.append(found.loss(False, words=words))  # an older step that still exists must not block a replay
            one, two = (found.step(on, words=words, seed=turn) for on in (True, False))
            if lower:
                torch.testing.assert_close(one[0], two[0], atol=0.03, rtol=0.05, check_dtype=False)
                about_alike(one[1], two[1])
            else:
                same(one, two, atol=1e-4, rtol=1e-3)
            with torch.no_grad():
                for p in found.matcher.parameters():
                    p += 0.01 * torch.randn_like(p)
    assert found.recorded == 2
    assert not caplog.records


@on_cuda
def test_random_numbers_continue_after_a_failed_capture(trained):
    found = trained(device="cuda")
    found.step(True, words=8)
    with pytest.MonkeyPatch.context() as patch:
        whole = found.objective.terms
        patch.setattr(found.objective, "terms", lambda *a: {k: v + v.item() for k, v in whole(*a).items()})
        found.step(True, words=8)
    assert found.recorded == 0
    assert torch.rand(3, device="cuda").unique().numel() == 3
    found.step(True, words=8)


@on_cuda
def test_gradients_of_cuda_graphs_accumulate_over_steps(trained):
    found, sums = trained(device="cuda"), []
    for seed in (1, 2):
        found.step(True, seed=seed, words=8)
    for on in (False, True):
        for p in found.learning():
            p.grad = None
        for seed in (1, 2, 3):
            found.loss(on, seed=seed, words=8)[1].backward()
        sums.append([p.grad.clone() for p in found.learning()])
    alike(*sums, atol=1e-4, rtol=1e-3)
