from __future__ import annotations

import numpy as np
import pytest

from calligram.data.matches import Matches
from calligram.training.batches.batch import NeighbourhoodSampler, PairSampler, second_partners

FIVE = Matches(np.repeat(np.arange(20), 5), np.arange(100), (20, 100))


def all_pairs(matches: Matches) -> set[tuple[int, ...]]:
    return set(zip(*(side.tolist() for side in matches.pairs()), strict=True))


def test_without_extra_pairs_batches_equal_those_of_the_pair_sampler():
    plain, same = PairSampler(FIVE, 8, 3).epoch(2), NeighbourhoodSampler(FIVE, 8, 3, extra="none").epoch(2)
    assert all(np.array_equal(one, two) for one, two in zip(plain, same, strict=True))


def test_every_image_gets_a_second_text_of_its_own():
    sampler = NeighbourhoodSampler(FIVE, 8, 0, extra="neighbours")
    for plain, batch in zip(PairSampler(FIVE, 8, 0).epoch(1), sampler.epoch(1), strict=True):
        assert np.array_equal(batch[: len(plain)], plain)
        assert set(map(tuple, batch.tolist())) <= all_pairs(FIVE)
        images, texts = batch[:, 0], batch[:, 1]
        assert set(images) == set(plain[:, 0])
        assert all(len(set(texts[images == image])) == 2 for image in set(images))


def test_random_extra_pairs_have_the_same_number_and_are_new_to_the_batch():
    near, far = (NeighbourhoodSampler(FIVE, 8, 0, extra=kind).epoch(1) for kind in ("neighbours", "random"))
    for plain, one, two in zip(PairSampler(FIVE, 8, 0).epoch(1), near, far, strict=True):
        assert len(one) == len(two)
        assert len(set(map(tuple, two.tolist()))) == len(two)
        assert set(map(tuple, two.tolist())) <= all_pairs(FIVE)
        assert len(set(two[:, 0])) > len(set(plain[:, 0]))


def test_texts_of_several_images_get_a_second_image():
    matches = Matches.from_pairs([(0, 0), (1, 0), (2, 1)], (3, 2))
    batch = np.array([[0, 0], [2, 1]])
    assert second_partners(batch[:, ::-1], matches.T, np.random.default_rng(0)).tolist() == [[0, 1]]
    assert second_partners(batch, matches, np.random.default_rng(0)).tolist() == []


@pytest.mark.parametrize("seed", range(3))
def test_second_partners_are_drawn_uniformly(seed):
    rng = np.random.default_rng(seed)
    drawn = [int(second_partners(np.array([[3, 17]]), FIVE, rng)[0, 1]) for _ in range(400)]
    counts = {text: drawn.count(text) for text in set(drawn)}
    assert set(counts) == {15, 16, 18, 19}
    assert min(counts.values()) > 60


def test_items_with_two_partners_in_the_batch_or_one_in_total_get_no_second_partner():
    matches = Matches.from_pairs([(0, 0), (0, 1), (0, 2), (1, 3)], (2, 4))
    assert not len(second_partners(np.array([[0, 0], [0, 1], [1, 3]]), matches, np.random.default_rng(0)))


def test_an_epoch_is_reproducible_and_epochs_differ():
    sampler = NeighbourhoodSampler(FIVE, 8, 0, extra="neighbours")
    assert all(np.array_equal(a, b) for a, b in zip(sampler.epoch(1), sampler.epoch(1), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(sampler.epoch(1), sampler.epoch(2), strict=True))
