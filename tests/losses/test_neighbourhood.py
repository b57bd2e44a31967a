from __future__ import annotations

import pytest
import torch

from calligram.losses.neighbourhood import NeighbourhoodScores, neighbourhood_ranking, neighbours

LAMBDAS = (1.0, 2.0, 0.3, 0.2)


def literal_neighbourhood(target, i):
    """N(x_i): the other items that share a text with x_i."""
    return [
        j
        for j in range(len(target))
        if j != i and any(target[i, t] == 1 and target[j, t] == 1 for t in range(target.shape[1]))
    ]


def literal_hinges(distances, positives, negatives, margin, top_k):
    """For every anchor and positive the K triplets of highest nonnegative loss."""
    total = 0.0
    for a in range(len(distances)):
        for p in positives(a):
            hinges = [max(0.0, margin + float(distances[a, p]) - float(distances[a, n])) for n in negatives(a)]
            total += sum(sorted(hinges, reverse=True)[:top_k])
    return total


def literal_eq_6(between, images, texts, target, margin, top_k):
    """Two-branch, Eq. 6, term by term, from distances."""
    across = (between, target), (between.T, target.T)
    terms = [
        literal_hinges(
            d,
            lambda a, t=t: [p for p in range(t.shape[1]) if t[a, p] == 1],
            lambda a, t=t: [n for n in range(t.shape[1]) if t[a, n] == -1],
            margin,
            top_k,
        )
        for d, t in across
    ]
    for d, t in ((images, target), (texts, target.T)):
        terms.append(
            literal_hinges(
                d,
                lambda a, t=t: literal_neighbourhood(t, a),
                lambda a, t=t: [k for k in range(len(t)) if k != a and k not in literal_neighbourhood(t, a)],
                margin,
                top_k,
            )
        )
    return [weight * term for weight, term in zip(LAMBDAS, terms, strict=True)]


def points(seed, dtype):
    """Few distinct points, so that distances tie; a target with ignored pairs and an image without a match."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.rand(4, 3, generator=generator, dtype=dtype)
    images = cells[torch.randint(0, 4, (6,), generator=generator)]
    texts = cells[torch.randint(0, 4, (9,), generator=generator)]
    target = torch.tensor([-1, -1, -1, 0, 1])[torch.randint(0, 5, (6, 9), generator=generator)]
    target[0] = -1
    return images, texts, target


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("top_k", [1, 3, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_four_terms_are_two_branch_eq_6(seed, top_k, dtype):
    images, texts, target = points(seed, dtype)
    between, among_images, among_texts = (
        torch.cdist(images, texts),
        torch.cdist(images, images),
        torch.cdist(texts, texts),
    )
    found = neighbourhood_ranking(
        -between,
        target,
        target.T,
        NeighbourhoodScores(-among_images, neighbours(target)),
        NeighbourhoodScores(-among_texts, neighbours(target.T)),
        weights=LAMBDAS,
        margin=0.3,
        top_k=top_k,
    )
    expected = literal_eq_6(between, among_images, among_texts, target, 0.3, top_k)
    assert [term.item() for term in found.values()] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_neighbours_are_two_branch_eqs_4_and_5():
    for seed in range(5):
        _, _, target = points(seed, torch.float32)
        for side in (target, target.T):
            found = neighbours(side)
            for i in range(len(side)):
                near = literal_neighbourhood(side, i)
                expected = [0 if j == i else 1 if j in near else -1 for j in range(len(side))]
                assert found[i].tolist() == expected


def test_text_neighbours_of_a_worked_example():
    """Two texts of one image at distance .5, a third of another image at .4 and .9; margin .1, text term only.

    Anchor 0: .1 + .5 - .4 = .2. Anchor 1: .1 + .5 - .9 < 0. Anchor 2 has no neighbour. Weight .2: .04.
    """
    target = torch.tensor([[1, -1], [1, -1], [-1, 1]])
    distances = torch.tensor([[0, 0.5, 0.4], [0.5, 0, 0.9], [0.4, 0.9, 0]])
    found = neighbourhood_ranking(
        torch.zeros(2, 3),
        target.T,
        target,
        texts=NeighbourhoodScores(-distances, neighbours(target)),
        weights=(0, 0, 0, 0.2),
    )
    assert {name: round(term.item(), 6) for name, term in found.items()} == {"text neighbours": 0.04}


def test_rows_of_one_group_without_a_shared_positive_are_ignored():
    target = torch.tensor([[1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    assert neighbours(target, torch.tensor([7, 7, 8])).tolist() == [[0, 0, -1], [0, 0, -1], [-1, -1, 0]]


def test_with_the_last_two_weights_zero_it_is_eq_3_and_needs_no_neighbourhoods():
    scores, target = torch.rand(3, 3), 2 * torch.eye(3, dtype=torch.int8) - 1
    assert set(neighbourhood_ranking(scores, target, target.T, weights=(1, 2, 0, 0))) == {
        "image anchors",
        "text anchors",
    }
    with pytest.raises(ValueError, match=r"'text neighbours' has weight 0\.2 but no scores"):
        neighbourhood_ranking(scores, target, target.T)


def test_loss_is_zero_where_margins_are_satisfied_and_gradients_are_finite():
    vectors = torch.eye(3, requires_grad=True)
    scores = -torch.cdist(vectors, vectors.detach())
    target = 2 * torch.eye(3, dtype=torch.int8) - 1
    loss = torch.stack(list(neighbourhood_ranking(scores, target, target.T, weights=(1, 2, 0, 0)).values())).sum()
    loss.backward()
    assert loss.item() == 0
    assert vectors.grad is not None
    assert torch.isfinite(vectors.grad).all()
