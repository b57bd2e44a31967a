"""Text to images by identity, as the person-search protocol counts it."""

from __future__ import annotations

import numpy as np
import pytest

from calligram.data.matches import Matches
from calligram.evaluation.oracle import chance, oracle_ranks
from calligram.evaluation.recall import relevant_ranks, retrieval_metrics
from calligram.evaluation.retrieval import measure_retrieval
from calligram.scenes.generate import generate_scenes


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return generate_scenes(tmp_path_factory.mktemp("people") / "c", images=280, size=16, kind="people", workers=1)


def cmc_and_map(scores: np.ndarray, of_image: list[int], of_text: list[int]) -> tuple[dict[int, float], float]:
    """Cumulative match characteristic and mean average precision, query by query as their definitions read."""
    hits, precisions = {1: [], 5: [], 10: []}, []
    for text, person in enumerate(of_text):
        order = sorted(range(len(of_image)), key=lambda image: -scores[image, text])
        right = [of_image[image] == person for image in order]
        for k, found in hits.items():
            found.append(any(right[:k]))
        at = [sum(right[: place + 1]) / (place + 1) for place in range(len(right)) if right[place]]
        precisions.append(sum(at) / len(at))
    return {k: 100 * sum(found) / len(found) for k, found in hits.items()}, 100 * sum(precisions) / len(precisions)


def test_cmc_and_map_are_those_of_the_definitions():
    rng = np.random.default_rng(0)
    of_image = [0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 4, 5, 6, 6, 6]
    of_text = [0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 1]
    scores = rng.normal(size=(len(of_image), len(of_text)))
    cmc, precision = cmc_and_map(scores, of_image, of_text)
    found = measure_retrieval(scores, Matches.from_groups(of_image, of_text)).t2i
    assert (found.r1, found.r5, found.r10) == pytest.approx(tuple(cmc.values()))
    assert found.map == pytest.approx(precision)


def test_by_hand():
    """Images of persons A, A, B. "A" finds B, A, A: first hit at 2, AP = (1/2 + 2/3) / 2. "B" finds B: AP = 1."""
    scores = np.array([[0.5, 0.1], [0.4, 0.2], [0.9, 0.8]])
    found = retrieval_metrics(relevant_ranks(scores.T, Matches.from_groups([0, 0, 1], [0, 1]).T))
    assert (found.r1, found.r5) == (50, 100)
    assert found.map == pytest.approx(100 * (7 / 12 + 1) / 2)
    assert found.medr == 1


def test_no_person_is_in_two_splits(people):
    identity = people.numbers("images", "identity")
    seen = [set(identity[people.images_in(split)].tolist()) for split in ("train", "dev", "test")]
    assert all(seen)
    assert sum(map(len, seen)) == len(set.union(*seen))


def test_a_text_is_true_of_all_images_of_its_person_and_of_persons_with_the_same_look(people):
    pairing = people.identities("all")
    identity = people.numbers("images", "identity")
    assert pairing.also_true is not None
    assert not len(pairing.matches.minus(pairing.also_true))
    assert len(pairing.also_true) >= len(people.sentences("all").also_true)
    for text in range(0, len(pairing.texts), 31):
        assert len(set(identity[pairing.matches.visuals_of(text)].tolist())) == 1
    assert 90 < oracle_ranks(pairing.matches.T, pairing.also_true.T).r1 <= 100


def test_a_collection_knows_whether_it_has_identities(people, tiny, tmp_path):
    assert people.has_identities("test")
    scenes = generate_scenes(tmp_path / "scenes", images=30, size=16, workers=1)
    assert not scenes.has_identities("test")


def test_chance_is_the_mean_over_random_orders(people):
    rng = np.random.default_rng(0)
    own = Matches.from_groups([0, 0, 1, 1, 1, 2, 3, 3], [0, 1, 1, 2, 3, 9]).T
    draws = [retrieval_metrics(relevant_ranks(rng.random(own.shape), own)) for _ in range(2000)]
    expected = chance(own)
    for metric in ("r1", "r5", "map", "map_r", "r_precision"):
        assert getattr(expected, metric) == pytest.approx(np.mean([getattr(d, metric) for d in draws]), abs=2)
    assert expected.meanr == pytest.approx(np.mean([d.meanr for d in draws]), abs=0.1)
    assert expected.queries == 5
