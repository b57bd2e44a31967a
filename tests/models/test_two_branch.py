from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from calligram.errors import UserError
from calligram.models.catalog import use_training_statistics
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import Encoded
from calligram.models.two_branch import (
    Branch,
    TwoBranchEmbedding,
    TwoBranchSettings,
    TwoBranchSimilarity,
    TwoBranchSimilaritySettings,
    distance_from_cosine,
)

SHAPE = TwoBranchSettings(ImageArchitecture(feature_dim=5), TextArchitecture("vectors", state_dim=7), 6, hidden=9)


@torch.no_grad()
def literal_branch(branch: Branch, x: torch.Tensor) -> torch.Tensor:
    """FC and ReLU, FC, batch norm with the training statistics, length one, number by number."""
    first, last = branch.layers
    out = []
    for row in x:
        inner = [max(0.0, float(w @ row + b)) for w, b in zip(first.weight, first.bias, strict=True)]
        outer = [float(w @ torch.tensor(inner) + b) for w, b in zip(last.weight, last.bias, strict=True)]
        norm = branch.norm
        normed = [
            (v - float(m)) / math.sqrt(float(s) + norm.eps) * float(g) + float(b)
            for v, m, s, g, b in zip(outer, norm.running_mean, norm.running_var, norm.weight, norm.bias, strict=True)
        ]
        length = math.sqrt(sum(v * v for v in normed))
        out.append([v / length for v in normed])
    return torch.tensor(out)


def trained(statistics: str = "training") -> TwoBranchEmbedding:
    """A matcher whose batch norm has running statistics other than the initial ones."""
    torch.manual_seed(0)
    matcher = TwoBranchEmbedding(replace(SHAPE, statistics=statistics))
    for _ in range(5):
        matcher.encode_images(3 + torch.randn(20, 5))
        matcher.encode_texts(torch.randn(20, 7))
    return matcher.eval()


def test_a_branch_is_that_of_section_3_2_1():
    matcher, x = trained(), torch.randn(4, 5)
    torch.testing.assert_close(matcher.encode_images(x).vectors, literal_branch(matcher.image_branch, x))


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_number_of_layers_is_a_setting_and_the_linear_variant_has_no_batch_norm(layers):
    branch = Branch(5, 9, 6, layers=layers, statistics="training")
    sizes = {1: [(6, 5)], 2: [(9, 5), (6, 9)], 3: [(9, 5), (9, 9), (6, 9)]}
    assert [tuple(layer.weight.shape) for layer in branch.layers] == sizes[layers]
    assert any(True for _ in branch.norm.parameters()) == (layers > 1)
    x = torch.randn(3, 5)
    torch.testing.assert_close(branch(x).norm(dim=1), torch.ones(3))
    if layers == 1:
        straight = branch.layers[0](x)
        torch.testing.assert_close(branch(x), straight / straight.norm(dim=1, keepdim=True))


def test_the_score_is_minus_the_euclidean_distance():
    matcher = trained()
    images, texts = matcher.encode_images(torch.randn(4, 5)), matcher.encode_texts(torch.randn(6, 7))
    torch.testing.assert_close(matcher.score(images, texts), -torch.cdist(images.vectors, texts.vectors))
    cosines = images.vectors @ texts.vectors.T
    assert torch.equal(matcher.score(images, texts).argsort(1), cosines.argsort(1))


def test_distance_by_hand():
    """Opposite, orthogonal and equal unit vectors have distances 2, sqrt 2 and almost 0; the gradient at 0 is
    finite."""
    cosines = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    found = distance_from_cosine(cosines)
    assert found.tolist() == pytest.approx([2, math.sqrt(2), 0], abs=2e-4)
    found.sum().backward()
    assert cosines.grad is not None
    assert torch.isfinite(cosines.grad).all()


@pytest.mark.parametrize(("heads", "sizes"), [(1, [(1, 6)]), (2, [(3, 6), (1, 3)]), (3, [(6, 6), (3, 6), (1, 3)])])
def test_the_similarity_is_fc_layers_over_the_product(heads, sizes):
    torch.manual_seed(0)
    settings = TwoBranchSimilaritySettings(**vars(SHAPE), heads=heads)
    matcher = TwoBranchSimilarity(settings).eval()
    assert [tuple(layer.weight.shape) for layer in matcher.head] == sizes
    x, y = torch.randn(3, 6), torch.randn(3, 6)
    expected: list[float] = []
    matcher.requires_grad_(False)
    for a, b in zip(x, y, strict=True):
        values = [float(p * q) for p, q in zip(a, b, strict=True)]
        for place, layer in enumerate(matcher.head):
            values = [float(w @ torch.tensor(values) + c) for w, c in zip(layer.weight, layer.bias, strict=True)]
            if place < heads - 1:
                values = [max(0.0, v) for v in values]
        expected += values
    torch.testing.assert_close(matcher.score_pairs(Encoded(x), Encoded(y)), torch.tensor(expected))


def test_layers_after_the_product_start_with_a_variance_of_two_over_their_inputs():
    torch.manual_seed(0)
    head = TwoBranchSimilarity(TwoBranchSimilaritySettings(SHAPE.image, SHAPE.text, 512, hidden=8)).head
    assert all(not layer.bias.any() for layer in head)
    assert [float(layer.weight.detach().std()) for layer in head] == pytest.approx(
        [math.sqrt(2 / 512), math.sqrt(2 / 512), math.sqrt(2 / 256)], rel=0.1
    )


def test_batch_statistics_depend_on_the_encoded_batch():
    """Footnote 3: a constant added to all items of a batch does not change the batch statistics' result."""
    training, batch = trained(), trained("batch")
    x = torch.randn(30, 5)
    with torch.no_grad():
        last = batch.image_branch.layers[1]
        before = {m: m.encode_images(x).vectors for m in (training, batch)}
        for matcher in (training, batch):
            matcher.image_branch.layers[1].bias += 5
        assert last is batch.image_branch.layers[1]
        torch.testing.assert_close(batch.encode_images(x).vectors, before[batch], rtol=1e-3, atol=1e-4)
        assert (training.encode_images(x).vectors - before[training]).abs().max() > 0.1


def test_batch_statistics_refuse_one_item_and_can_be_replaced_by_training_statistics():
    matcher = trained("batch")
    with pytest.raises(UserError, match=r"statistics=batch.*encode at least two"):
        matcher.encode_texts(torch.randn(1, 7))
    assert use_training_statistics(matcher)
    assert not use_training_statistics(matcher)
    one = torch.randn(1, 7)
    torch.testing.assert_close(matcher.encode_texts(one).vectors, trained().encode_texts(one).vectors)


def test_invalid_settings_are_refused():
    with pytest.raises(ValueError, match="layers of a branch must be from 1 to 3, got 4"):
        TwoBranchEmbedding(replace(SHAPE, layers=4))
    with pytest.raises(ValueError, match="layers after the product must be from 1 to 3, got 0"):
        TwoBranchSimilarity(TwoBranchSimilaritySettings(**vars(SHAPE), heads=0))
    with pytest.raises(ValueError, match="training or batch, got 'test'"):
        TwoBranchEmbedding(replace(SHAPE, statistics="test"))
