"""MMCA's scores of selected pairs, in tiles, threads and half precision, against its scores of all pairs."""

from __future__ import annotations

import threading

import pytest
import torch

from calligram.models import mmca
from calligram.models.layers import score_tiles
from calligram.models.matcher import Encoded


def gradients(scores, found, inputs):
    weights = (torch.arange(scores.numel()) * 0.7).sin().view_as(scores)
    return torch.autograd.grad((scores * weights).sum(), [*found.parameters(), *inputs], retain_graph=True)


def test_aligned_pairs_are_entries_of_all_pairs_with_the_same_gradients(matcher, given, encoded):
    found, (features, states, mask) = matcher(), given()
    images, texts = encoded(found, features, states, mask)
    rows, columns = torch.tensor([0, 2, 2, 1, 0]), torch.tensor([3, 0, 1, 1, 3])
    whole, pairs = found.score(images, texts)[rows, columns], found.score_pairs(images.rows(rows), texts.rows(columns))
    torch.testing.assert_close(pairs, whole)
    names = [name for name, _ in found.named_parameters()]
    for name, one, two in zip(names, gradients(pairs, found, ()), gradients(whole, found, ()), strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4, msg=lambda told, name=name: f"{name}: {told}")
    assert found.score_pairs(images.rows(slice(0)), texts.rows(slice(0))).shape == (0,)


@pytest.mark.parametrize(("tile", "kept"), [(1, 1 << 31), (1, 0), (1 << 20, 0), (3000, 1 << 31)])
def test_tile_size_text_order_and_recomputation_do_not_change_scores(monkeypatch, tile, kept, matcher, given, encoded):
    found, (features, states, mask) = matcher(), given(5, 70)
    whole = found.score(*encoded(found, features, states, mask))
    expected = gradients(whole, found, ())
    monkeypatch.setattr(score_tiles, "TILE_PRODUCTS", {"cpu": tile})
    monkeypatch.setattr(score_tiles, "MAX_BACKWARD_BYTES", {"cpu": kept})
    monkeypatch.setattr(score_tiles, "TILE_TEXTS", {"cpu": (2, 16)})
    again = found.score(*encoded(found, features, states, mask))
    torch.testing.assert_close(again, whole)
    for one, two in zip(gradients(again, found, ()), expected, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
    order = torch.randperm(70)
    images, texts = encoded(found, features, states, mask)
    torch.testing.assert_close(found.score(images, texts.rows(order)), whole[:, order])


@pytest.mark.parametrize(("tile", "kept"), [(1, 1 << 31), (1, 0), (1 << 20, 0), (3000, 1 << 31)])
def test_selected_pairs_are_entries_of_all_pairs_for_any_tile_size(monkeypatch, tile, kept, matcher, given, encoded):
    found, (features, states, mask) = matcher(), given(5, 70)
    rows, columns = torch.randint(5, (60,)), torch.randint(70, (60,))
    expected = found.score(*encoded(found, features, states, mask))[rows, columns]
    theirs = gradients(expected, found, ())
    monkeypatch.setattr(score_tiles, "TILE_PRODUCTS", {"cpu": tile})
    monkeypatch.setattr(score_tiles, "MAX_BACKWARD_BYTES", {"cpu": kept})
    monkeypatch.setattr(score_tiles, "TILE_TEXTS", {"cpu": (2, 16)})
    images, texts = encoded(found, features, states, mask)
    some = found.score_some(images, texts, rows, columns)
    torch.testing.assert_close(some, expected)
    for one, two in zip(gradients(some, found, ()), theirs, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.score_pairs(images.rows(rows), texts.rows(columns)), expected)
    assert found.score_some(images, texts, rows[:0], columns[:0]).shape == (0,)


def test_on_a_gpu_pairs_of_one_tile_are_scored_without_their_lengths(monkeypatch, matcher, given, encoded):
    found, (features, states, mask) = matcher(), given(5, 70)
    images, texts = encoded(found, features, states, mask)
    rows, columns = torch.randint(5, (60,)), torch.randint(70, (60,))
    monkeypatch.setattr(score_tiles, "TILE_TEXTS", {"cpu": (2, 16)})
    expected = found.score_some(images, texts, rows, columns)
    monkeypatch.setattr(score_tiles, "UNSORTED_DEVICES", ("cpu",))
    monkeypatch.setattr(score_tiles, "used_lengths", None)
    torch.testing.assert_close(found.score_some(images, texts, rows, columns), expected)
    monkeypatch.setattr(score_tiles, "TILE_PRODUCTS", {"cpu": 1})
    with pytest.raises(TypeError):
        found.score_some(images, texts, rows, columns)


@torch.no_grad()
def test_tiles_in_parallel_threads_give_the_same_scores(monkeypatch, matcher, given, encoded):
    found, (features, states, mask) = matcher(), given(5, 70)
    images, texts = encoded(found, features, states, mask)
    rows, columns = torch.randint(5, (60,)), torch.randint(70, (60,))
    before, threads = torch.get_num_threads(), set()
    real = found.pairs.aligned
    monkeypatch.setattr(found.pairs, "aligned", lambda *a: threads.add(threading.get_ident()) or real(*a))
    try:
        torch.set_num_threads(1)
        alone = found.score_some(images, texts, rows, columns)
        assert threads == {threading.get_ident()}
        torch.set_num_threads(3)
        torch.testing.assert_close(found.score_some(images, texts, rows, columns), alone)
        assert torch.get_num_threads() == 3
        assert len(threads) > 1
        torch.testing.assert_close(found.score(images, texts.rows(slice(1)))[:, 0], found.score(images, texts)[:, 0])
    finally:
        torch.set_num_threads(before)


def test_per_item_computation_runs_once_for_all_pairs_of_the_item(monkeypatch, matcher, given, encoded):
    found, (features, states, mask) = matcher(), given(5, 70)
    images, texts = encoded(found, features, states, mask)
    prepared, real = [], found.pairs.project_items
    monkeypatch.setattr(score_tiles, "TILE_PRODUCTS", {"cpu": 1})
    monkeypatch.setattr(found.pairs, "project_items", lambda items: prepared.append(len(items.vectors)) or real(items))
    found.score_some(images, texts, torch.arange(350) // 70, torch.arange(350) % 70)
    assert sum(prepared) == 75


@pytest.mark.parametrize(("images", "texts"), [(1, 70), (2, 70), (5, 1), (5, 2), (1, 1)])
def test_few_items_are_scored_pair_by_pair_with_the_same_scores(monkeypatch, images, texts, matcher, given, encoded):
    found, given_items = matcher(), given(images, texts)
    pair = encoded(found, *given_items)
    few = found.score(*pair)
    assert few.shape == (images, texts)
    monkeypatch.setattr(mmca, "MAX_STACKED_ITEMS", 0)
    torch.testing.assert_close(found.score(*pair), few)


@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
def test_lower_precision_stays_close(lower, matcher, given, encoded):
    found, (features, states, mask) = matcher(dim=48, filters=16), given()
    exact = found.score(*encoded(found, features, states, mask))
    with torch.autocast("cpu", lower):
        images, texts = encoded(found, features, states, mask)
        scores, pairs = found.score(images, texts), found.score_pairs(images, texts.rows(slice(3)))
    torch.testing.assert_close(scores.float(), exact, atol=0.04, rtol=0)
    torch.testing.assert_close(pairs.float(), exact.diagonal(), atol=0.04, rtol=0)


def test_empty_inputs_give_empty_scores(matcher):
    found = matcher()
    none = Encoded(torch.zeros(0, 12), torch.zeros(0, 3, 12), torch.ones(0, 3, dtype=torch.bool))
    some = found.encode_images(torch.randn(2, 3, 5))
    assert found.score(some, none).shape == (2, 0)
    assert found.score(none, some).shape == (0, 2)


def test_cosines_of_vectors_are_not_rounded_in_half_precision(matcher, given, encoded):
    found = matcher(alpha=0.0)
    with torch.no_grad():
        images, texts = encoded(found, *given())
        expected = found.score(images, texts)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(found.score(images, texts), expected)
