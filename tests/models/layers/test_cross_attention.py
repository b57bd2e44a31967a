"""Cross attention against the published arithmetic: a loop over captions that builds every attended vector."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from calligram.models.layers.cross_attention import (
    AttentionSettings,
    PartProducts,
    Parts,
    aggregate,
    attention_weights,
    part_relevances,
    similarity,
)
from calligram.models.layers.score_tiles import score_in_tiles, used_lengths
from calligram.models.matcher import Encoded

NORMS = ("clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "softmax", "clipped", "none")
WAYS = [
    *itertools.product(NORMS, (9.0,), ("none",), ("lse",)),
    *itertools.product(("clipped_l2norm",), (4.0, 60.0), ("none", "equal", "prob"), ("mean", "max", "sum")),
]


def cosine(one, two):
    """Cosine of rows, with the eps of the release."""
    return (one * two).sum(-1) / (one.norm(dim=-1) * two.norm(dim=-1)).clamp(min=1e-8)


def literal_attention(query, context, how):
    """Attention weights (Q, S) of one item each, (Q, D) and (S, D), as in the releases."""
    attn = context @ query.T
    if how.norm.startswith("clipped"):
        attn = F.leaky_relu(attn, 0.1)
    if how.norm.endswith("l2norm"):
        attn = attn / (attn.pow(2).sum(1, keepdim=True).sqrt() + 1e-8)
    if how.norm.endswith("l1norm"):
        attn = attn / (attn.abs().sum(1, keepdim=True) + 1e-8)
    if how.norm == "softmax":
        attn = torch.softmax(attn, dim=1)
    attn = torch.softmax(attn.T * how.temperature, dim=1)
    count = attn.shape[1]
    if how.focal == "equal":
        function = attn * count - attn.sum(1, keepdim=True)
    elif how.focal == "prob":
        pairs = (attn.unsqueeze(2) - attn.unsqueeze(1)) * attn.unsqueeze(1).sqrt()
        function = pairs.sum(2)
    else:
        return attn
    kept = torch.where(function > 0, attn, torch.zeros_like(attn))
    return kept / kept.sum(1, keepdim=True)


def literal(context, query, how, kind, sharpness):
    """Scores (C, T) of lists of items."""
    rows = []
    for one in context:
        row = []
        for two in query:
            relevance = cosine(two, literal_attention(two, one, how) @ one)
            row.append(
                {
                    "lse": lambda r: (sharpness * r).exp().sum().log() / sharpness,
                    "mean": lambda r: r.mean(),
                    "max": lambda r: r.max(),
                    "sum": lambda r: r.sum(),
                }[kind](relevance)
            )
        rows.append(torch.stack(row))
    return torch.stack(rows)


def items(count, longest, seed, dtype=torch.float64, least=2, scale=1.0):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(least, longest + 1, (count,), generator=random)
    lengths[0] = longest
    vectors = scale * F.normalize(torch.randn(count, longest, 8, generator=random, dtype=dtype), dim=-1)
    mask = torch.arange(longest) < lengths[:, None]
    # Padding is not zero here, and must not matter.
    return vectors, mask


def parts(vectors, mask):
    return Parts.of(Encoded(vectors.mean(1), vectors, mask))


def real(vectors, mask):
    return [v[m] for v, m in zip(vectors, mask, strict=True)]


@pytest.mark.parametrize(("norm", "temperature", "focal", "kind"), WAYS)
def test_scores_and_gradients_equal_the_published_loop(norm, temperature, focal, kind):
    how = AttentionSettings(norm, temperature, focal)
    (one, one_mask), (two, two_mask) = items(3, 5, 0), items(4, 6, 1, scale=1.5)
    one.requires_grad_()
    two.requires_grad_()
    weights = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for turned in (False, True):
        crossing = PartProducts.of(parts(one, one_mask), parts(two, two_mask))
        found = similarity(crossing.transposed() if turned else crossing, how, kind, 5.0)
        lists = real(one, one_mask), real(two, two_mask)
        expected = literal(*(reversed(lists) if turned else lists), how, kind, 5.0)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
        sign = weights.T if turned else weights
        ours = torch.autograd.grad((found * sign).sum(), (one, two))
        theirs = torch.autograd.grad((expected * sign).sum(), (one, two))
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("focal", ["none", "equal", "prob"])
@pytest.mark.parametrize("norm", NORMS)
def test_scores_without_gradients_in_float32_equal_the_published_loop(norm, focal):
    how = AttentionSettings(norm, 9.0, focal)
    one, two = items(3, 5, 0), items(4, 6, 1)
    expected = literal(real(*one), real(*two), how, "lse", 6.0)
    with torch.no_grad():
        crossing = PartProducts.of(parts(one[0].float(), one[1]), parts(two[0].float(), two[1]))
        kept = crossing.products.clone()
        found = similarity(crossing, how, "lse")
        assert torch.equal(
            crossing.products, kept
        )  # the products must not change, since a second attention may use them
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "how", [AttentionSettings(), AttentionSettings("clipped_l2norm", 20.0, "prob"), AttentionSettings("none", 9.0)]
)
def test_aligned_pairs_are_the_diagonal_of_all_pairs_in_both_directions(how):
    one, two = parts(*items(4, 5, 0)), parts(*items(4, 6, 1))
    grid, pairs = PartProducts.of(one, two), PartProducts.of(one, two, aligned=True)
    for whole, aligned in ((grid, pairs), (grid.transposed(), pairs.transposed())):
        found = similarity(aligned, how, "mean")
        assert found.shape == (4, 1)
        torch.testing.assert_close(found[:, 0], similarity(whole, how, "mean").diagonal())


@pytest.mark.parametrize("focal", ["none", "equal", "prob"])
def test_attention_weights_equal_the_loop_and_are_zero_for_padding(focal):
    how = AttentionSettings(focal=focal)
    one, two = items(2, 5, 3), items(2, 4, 4)
    found = attention_weights(PartProducts.of(parts(*one), parts(*two)), how)
    share = found / found.sum(1, keepdim=True)
    for i, t in itertools.product(range(2), range(2)):
        own = share[i, :, :, t][:, two[1][t]]
        expected = literal_attention(two[0][t][two[1][t]], one[0][i][one[1][i]], how)
        torch.testing.assert_close(own[one[1][i]], expected.T)
        assert not own[~one[1][i]].any()


@pytest.mark.parametrize("focal", ["equal", "prob"])
@pytest.mark.parametrize("alike", [1, 3])
def test_a_context_of_one_part_or_equal_parts_is_kept(focal, alike):
    vector, query = torch.randn(8, dtype=torch.float64), torch.randn(1, 2, 8, dtype=torch.float64)
    one = vector.expand(1, alike, 8).clone().requires_grad_()
    crossing = PartProducts.of(
        parts(one, torch.ones(1, alike, dtype=torch.bool)), parts(query, torch.ones(1, 2).bool())
    )
    found = part_relevances(crossing, AttentionSettings("clipped_l2norm", 20.0, focal))
    torch.testing.assert_close(found[0, :, 0], cosine(query[0], vector.expand(2, 8)))
    found.sum().backward()
    assert torch.isfinite(one.grad).all()


@pytest.mark.parametrize("kind", ["lse", "mean", "max", "sum"])
def test_items_without_parts_score_zero_and_have_finite_gradients(kind):
    (one, one_mask), (two, two_mask) = items(3, 4, 0, torch.float32), items(3, 4, 1, torch.float32)
    one_mask[1] = False
    two_mask[2] = False
    one.requires_grad_()
    two.requires_grad_()
    crossing = PartProducts.of(parts(one, one_mask), parts(two, two_mask))
    for each in (crossing, crossing.transposed()):
        relevance = part_relevances(each, AttentionSettings())
        found = aggregate(relevance, each, kind)
        assert torch.isfinite(found).all()
        grads = torch.autograd.grad(found.sum(), (one, two), retain_graph=True)
        assert all(torch.isfinite(g).all() for g in grads)
    assert not similarity(crossing, AttentionSettings(), kind)[:, 2].any()
    assert not part_relevances(crossing, AttentionSettings())[1].any()


@pytest.mark.parametrize("kept", [None, 0])
@pytest.mark.parametrize("tile", [1, 100, None])
def test_tiles_and_recomputation_do_not_change_scores(tile, kept):
    (one, one_mask), (two, two_mask) = items(5, 3, 0), items(40, 7, 1, least=1)
    one.requires_grad_()

    def scores(images, texts):
        return similarity(PartProducts.of(images, texts), AttentionSettings(), "lse")

    whole = scores(parts(one, one_mask), parts(two, two_mask))
    given = Encoded(one.mean(1), one, one_mask), Encoded(two.mean(1), two, two_mask)
    found = score_in_tiles(*given, scores, tile=tile, max_bytes=kept)
    torch.testing.assert_close(found, whole)
    ours, theirs = (torch.autograd.grad(s.square().sum(), one)[0] for s in (found, whole))
    torch.testing.assert_close(ours, theirs)


def test_empty_inputs_give_empty_scores():
    one, none = Encoded(torch.ones(2, 8), torch.ones(2, 3, 8)), Encoded(torch.zeros(0, 8), torch.zeros(0, 3, 8))
    assert score_in_tiles(one, none, lambda a, b: torch.ones(1)).shape == (2, 0)
    assert score_in_tiles(none, one, lambda a, b: torch.ones(1)).shape == (0, 2)


def test_used_lengths_end_at_the_last_real_part():
    mask = torch.tensor([[True, False, True, False], [False] * 4, [True, False, False, False]])
    assert used_lengths(mask).tolist() == [3, 0, 1]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("temperature", [9.0, 20.0])
@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
def test_products_are_in_half_precision_and_sums_in_float32(lower, temperature, grad):
    one, two = items(3, 5, 0, torch.float32), items(4, 6, 1, torch.float32)
    how = AttentionSettings("clipped_l2norm", temperature)
    exact = similarity(PartProducts.of(parts(*one), parts(*two)), how, "lse")
    with torch.autocast("cpu", lower), torch.set_grad_enabled(grad):
        found = similarity(PartProducts.of(parts(*one), parts(*two)), how, "lse")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, atol=0.02, rtol=0)


def test_the_order_of_parts_does_not_change_the_score():
    (one, one_mask), (two, two_mask) = items(3, 5, 0), items(4, 6, 1)
    regions, words = torch.tensor([3, 1, 4, 0, 2]), torch.tensor([5, 0, 2, 1, 4, 3])
    for how in (AttentionSettings(), AttentionSettings("softmax"), AttentionSettings("clipped_l2norm", 20.0, "prob")):
        plain = PartProducts.of(parts(one, one_mask), parts(two, two_mask))
        mixed = PartProducts.of(parts(one[:, regions], one_mask[:, regions]), parts(two[:, words], two_mask[:, words]))
        for a, b in ((plain, mixed), (plain.transposed(), mixed.transposed())):
            torch.testing.assert_close(similarity(a, how, "lse"), similarity(b, how, "lse"))


def test_an_item_without_parts_has_its_vector_as_part():
    one, two = torch.randn(3, 8), torch.randn(4, 8)
    found = score_in_tiles(
        Encoded(one), Encoded(two), lambda a, b: similarity(PartProducts.of(a, b), AttentionSettings(), "mean")
    )
    torch.testing.assert_close(found, F.normalize(one, dim=1) @ F.normalize(two, dim=1).T)


@pytest.mark.parametrize("focal", ["equal", "prob"])
def test_padding_does_not_change_the_score_of_a_text_of_one_word(focal):
    """The weights of a single word are equal except for rounding, which must not select regions."""
    how = AttentionSettings("clipped_l2norm", 20.0, focal)
    for seed in range(20):
        regions, region_mask = items(3, 5, seed, torch.float32)
        words = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(100 + seed))
        mask = torch.tensor([[True, False, False, False], [True, True, True, True]])
        alone = PartProducts.of(parts(regions, region_mask), parts(words[:1, :1], mask[:1, :1]))
        padded = PartProducts.of(parts(regions, region_mask), parts(words, mask))
        found = similarity(padded, how, "mean")[:, :1]
        torch.testing.assert_close(found, similarity(alone, how, "mean"), atol=1e-5, rtol=1e-5)
