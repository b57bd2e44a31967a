from __future__ import annotations

import numpy as np
import pytest

from calligram.data.matches import Matches


def random_relation(seed: int) -> tuple[set[tuple[int, int]], Matches]:
    """A random relation as a plain set and as Matches; some pairs given twice, some items alone."""
    rng = np.random.default_rng(seed)
    visuals, texts, pairs = (int(n) for n in rng.integers(1, 12, 3))
    chosen = [(int(rng.integers(visuals)), int(rng.integers(texts))) for _ in range(pairs)]
    return set(chosen), Matches.from_pairs(chosen + chosen[:2], (visuals, texts))


def components(pairs: set[tuple[int, int]], shape: tuple[int, int]) -> list[int]:
    """Union-find over visuals and then texts, as slowly as it is plain."""
    root = list(range(sum(shape)))
    for visual, text in pairs:
        old, new = root[shape[0] + text], root[visual]
        root = [new if r == old else r for r in root]
    return root


@pytest.mark.parametrize("seed", range(20))
def test_lookups_agree_with_a_plain_set_of_pairs(seed: int) -> None:
    pairs, matches = random_relation(seed)
    assert len(matches) == len(pairs)
    assert set(zip(*(a.tolist() for a in matches.pairs()), strict=True)) == pairs
    for visual in range(matches.shape[0]):
        assert matches.texts_of(visual).tolist() == sorted(t for v, t in pairs if v == visual)
    for text in range(matches.shape[1]):
        assert matches.visuals_of(text).tolist() == sorted(v for v, t in pairs if t == text)
    by_visual, by_text = matches.counts()
    assert by_visual.sum() == by_text.sum() == len(pairs)


@pytest.mark.parametrize("seed", range(20))
def test_target_is_plus_one_for_pairs_and_minus_one_elsewhere(seed: int) -> None:
    pairs, matches = random_relation(seed)
    rng = np.random.default_rng(seed)
    visuals, texts = rng.integers(0, matches.shape[0], 5), rng.integers(0, matches.shape[1], 4)
    expected = [[1 if (v, t) in pairs else -1 for t in texts] for v in visuals]
    assert matches.target(visuals, texts).tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_select_renumbers_items_by_position(seed: int) -> None:
    pairs, matches = random_relation(seed)
    rng = np.random.default_rng(seed)
    visuals, texts = rng.permutation(matches.shape[0])[:6], rng.permutation(matches.shape[1])[:6]
    expected = {(i, j) for i, v in enumerate(visuals) for j, t in enumerate(texts) if (v, t) in pairs}
    assert matches.select(visuals, texts) == Matches.from_pairs(expected, (len(visuals), len(texts)))


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_the_connected_components(seed: int) -> None:
    pairs, matches = random_relation(seed)
    root = components(pairs, matches.shape)
    labels = np.concatenate(matches.groups()).tolist()
    same = [[a == b for b in root] for a in root]
    assert [[a == b for b in labels] for a in labels] == same


def test_groups_are_numbered_in_the_order_of_the_visual_items() -> None:
    matches = Matches.from_pairs([(2, 0), (0, 1), (0, 2)], (3, 4))
    visual, text = matches.groups()
    assert visual.tolist() == [0, 1, 2]
    assert text.tolist() == [2, 0, 0, 3]


@pytest.mark.parametrize("seed", range(10))
def test_from_groups_matches_equal_labels_and_ignores_negative_labels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    visual, text = rng.integers(-2, 4, 9), rng.integers(-2, 4, 7)
    expected = {(i, j) for i, v in enumerate(visual) for j, t in enumerate(text) if v == t and v >= 0}
    assert Matches.from_groups(visual, text) == Matches.from_pairs(expected, (9, 7))


@pytest.mark.parametrize("seed", range(10))
def test_transposing_twice_gives_the_same_relation(seed: int) -> None:
    pairs, matches = random_relation(seed)
    assert matches == matches.T.T
    assert set(zip(*(a.tolist() for a in matches.T.pairs()), strict=True)) == {(t, v) for v, t in pairs}


@pytest.mark.parametrize("seed", range(10))
def test_shared_texts_relates_items_with_a_common_text(seed: int) -> None:
    pairs, matches = random_relation(seed)
    count = matches.shape[0]
    expected = {(a, b) for a, t in pairs for b, u in pairs if t == u and a != b}
    assert matches.shared_texts() == Matches.from_pairs(expected, (count, count))


def test_an_empty_relation_is_allowed() -> None:
    matches = Matches.from_pairs([], (2, 0))
    assert len(matches) == 0
    assert matches.texts_of(1).tolist() == []
    assert matches.groups()[0].tolist() == [0, 1]


def test_an_index_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"text indices must lie in 0\.\.2, got 3\.\.3"):
        Matches([0], [3], (1, 3))


def test_lists_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="equal length"):
        Matches([0, 1], [0], (2, 2))


def test_among_gives_which_aligned_pairs_match():
    matches = Matches([0, 0, 2], [1, 3, 1], (3, 4))
    found = matches.among(np.array([0, 0, 1, 2, 0]), np.array([1, 0, 1, 1, 3]))
    assert found.tolist() == [True, False, False, True, True]
    assert not len(matches.among(np.array([], dtype=np.int64), np.array([], dtype=np.int64)))


def test_visual_items_that_share_a_text_by_the_double_loop():
    matches = Matches.from_pairs([(0, 0), (0, 1), (1, 1), (2, 2), (4, 2)], (5, 3))
    rows, others = np.array([2, 0, 0]), np.array([0, 1, 3, 4])
    expected = [[bool(set(matches.texts_of(a)) & set(matches.texts_of(b))) for b in others] for a in rows]
    assert matches.sharing(rows, others).tolist() == expected
    assert expected == [[False, False, False, True], [True, True, False, False], [True, True, False, False]]
