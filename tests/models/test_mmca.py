from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from calligram.errors import UserError
from calligram.features.texts.text_encoder import TextEncoder
from calligram.models import catalog
from calligram.models.layers.text_cnn import NgramText
from calligram.models.layers.towers import TextArchitecture
from calligram.models.layers.transformer_unit import TransformerUnit
from calligram.models.matcher import stack
from calligram.models.mmca import drop_regions


def literal_unit(unit, parts):
    """Eqs. 1-4 for a list of parts, head by head and part by part."""
    size, attended = unit.size, []
    for query in parts:
        heads = []
        for head in range(unit.heads):
            rows = slice(head * size, (head + 1) * size)
            q = unit.query.weight[rows] @ query
            logits = [q @ (unit.key.weight[rows] @ part) / math.sqrt(size) for part in parts]
            weights = torch.stack(logits).exp() / sum(logit.exp() for logit in logits)
            heads.append(sum(w * (unit.value.weight[rows] @ part) for w, part in zip(weights, parts, strict=True)))
        attended.append(unit.out.weight @ torch.cat(heads))
    found = []
    for part, update in zip(parts, attended, strict=True):
        x = literal_norm(unit.attended_norm, part + update)
        inner = torch.clamp(unit.inner.weight @ x + unit.inner.bias, min=0)
        found.append(literal_norm(unit.norm, x + unit.outer.weight @ inner + unit.outer.bias))
    return found


def literal_norm(norm, vector):
    off = vector - vector.mean()
    return off / torch.sqrt((off**2).mean() + norm.eps) * norm.weight + norm.bias


def literal_ngrams(ngrams, words):
    """Eqs. 6 and 7 n-gram by n-gram; zeros follow the last word."""
    best = []
    for size, layer in zip((1, 2, 3), ngrams.windows, strict=True):
        answers = []
        for first in range(len(words)):
            window = [words[i] if i < len(words) else torch.zeros_like(words[0]) for i in range(first, first + size)]
            answers.append(torch.relu(layer.weight @ torch.cat(window) + layer.bias))
        best.append(torch.stack(answers).max(0).values)
    return ngrams.project.weight @ torch.cat(best) + ngrams.project.bias


def cosine(one, two):
    return one @ two / (one.norm() * two.norm())


def literal_score(found, features, states):
    """S of one image and one text, from their real regions and words."""
    regions = [found.project.weight @ f + found.project.bias for f in features]
    words = [found.text.project.weight @ e + found.text.project.bias for e in states]
    i0 = sum(literal_unit(found.regions, regions)) / len(regions)
    c0 = literal_ngrams(found.ngrams, list(states))
    both = literal_unit(found.pairs.unit, [*regions, *words])
    i1 = sum(both[: len(regions)]) / len(regions)
    c1 = literal_ngrams(found.pairs.ngrams, both[len(regions) :])
    return cosine(i0, c0) + found.settings.alpha * cosine(i1, c1)


def literal_scores(found, features, states, mask):
    real = [image[image.any(-1)] for image in features]
    texts = [text[there] for text, there in zip(states, mask, strict=True)]
    return torch.stack([torch.stack([literal_score(found, image, text) for text in texts]) for image in real])


def gradients(scores, found, inputs):
    weights = (torch.arange(scores.numel()) * 0.7).sin().view_as(scores)
    return torch.autograd.grad((scores * weights).sum(), [*found.parameters(), *inputs], retain_graph=True)


def test_scores_and_gradients_equal_mmca_eqs_1_to_14_in_literal_loops(matcher, given, encoded):
    found, (features, states, mask) = matcher(), given()
    features.requires_grad_()
    states.requires_grad_()
    scores = found.score(*encoded(found, features, states, mask))
    expected = literal_scores(found, features, states, mask)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
    names = [name for name, _ in found.named_parameters()] + ["features", "states"]
    ours, theirs = (gradients(s, found, (features, states)) for s in (scores, expected))
    for name, one, two in zip(names, ours, theirs, strict=True):
        assert one.abs().sum() > 0, name
        torch.testing.assert_close(one, two, atol=2e-5, rtol=1e-4, msg=lambda told, name=name: f"{name}: {told}")


def test_the_transformer_unit_is_mmca_eqs_1_to_4():
    torch.manual_seed(0)
    unit = TransformerUnit(12, 4)
    parts, mask = torch.randn(2, 5, 12), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = unit(parts, mask)
    for row in range(2):
        expected = torch.stack(literal_unit(unit, list(parts[row][mask[row]])))
        torch.testing.assert_close(found[row][mask[row]], expected, atol=1e-5, rtol=1e-5)


def test_ngram_filters_are_mmca_eqs_6_and_7():
    torch.manual_seed(0)
    ngrams = NgramText(5, 4, 6)
    words, mask = torch.randn(3, 4, 5), torch.tensor([[True] * 4, [True, True, False, False], [True] + [False] * 3])
    found = ngrams(words, mask)
    for row in range(3):
        expected = literal_ngrams(ngrams, list(words[row][mask[row]]))
        torch.testing.assert_close(found[row], expected, atol=1e-6, rtol=1e-5)


def test_regions_are_dropped_in_training_only_and_do_not_change_the_score(matcher, given, encoded):
    found, (features, states, mask) = matcher(region_dropout=0.6), given()
    found.eval()
    torch.testing.assert_close(
        found.score(*encoded(found, features, states, mask)), literal_scores(found, features, states, mask),
        atol=1e-5, rtol=1e-5,
    )  # fmt: skip
    found.train()
    torch.manual_seed(3)
    images = found.encode_images(features)
    seen = features.masked_fill(~images.mask.unsqueeze(-1), 0.0)
    assert 0 < int(images.mask.sum()) < int(features.any(-1).sum())
    found.eval()
    torch.testing.assert_close(images.vectors, found.encode_images(seen).vectors)


def test_a_share_of_parts_is_dropped_and_each_item_keeps_one():
    torch.manual_seed(0)
    real = torch.rand(2000, 6) < 0.8
    kept = drop_regions(real, 0.75)
    assert not (kept & ~real).any()
    assert (kept.any(1) == real.any(1)).all()
    assert 0.2 < float(drop_regions(torch.ones(500, 60, dtype=torch.bool), 0.75).float().mean()) < 0.3
    assert (drop_regions(torch.ones(9, 5, dtype=torch.bool), 0.99).sum(1) >= 1).all()


@pytest.mark.parametrize("large", [1.0, 30.0])
def test_own_parts_have_the_weight_of_one_softmax_over_all_parts(large):
    torch.manual_seed(0)
    unit = TransformerUnit(12, 3).double()
    one, two = (torch.randn(2, count, 12, dtype=torch.float64) * large for count in (4, 5))
    real = torch.ones(2, 4, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool)
    together = unit(torch.cat([one, two], 1), torch.cat(real, 1))
    looking = unit.prepare_items(one, real[0]), unit.prepare_items(two, real[1])
    each = torch.arange(2)
    for (who, seen), expected in ((looking, together[:, :4]), (looking[::-1], together[:, 4:])):
        found = unit.feed_forward(who.parts, unit.attend(who, seen))
        torch.testing.assert_close(found[each, each], expected)
    projected = unit.project_items(one, real[0]), unit.project_items(two, real[1])
    torch.testing.assert_close(unit.feed_forward(torch.cat([one, two], 1), unit.attend_stacked(*projected)), together)


def test_padding_and_the_order_of_regions_do_not_change_the_score(matcher, given, encoded):
    found, (features, states, mask) = matcher(), given()
    images, texts = encoded(found, features, states, mask)
    plain = found.score(images, texts)
    wider = torch.cat([features[:, [2, 0, 3, 1]], torch.zeros(3, 2, 5)], 1)
    longer = torch.cat([states, torch.randn(4, 3, 7)], 1), F.pad(mask, (0, 3))
    torch.testing.assert_close(found.score(*encoded(found, wider, *longer)), plain)
    padded = stack([texts, found.encode_texts(*longer)])
    torch.testing.assert_close(found.score(images, padded), torch.cat([plain, plain], 1))
    alone = found.encode_texts(states[3:, :1])
    torch.testing.assert_close(found.score_pairs(images.rows(slice(1)), alone), plain[:1, 3])


def test_an_item_without_parts_has_finite_scores_and_gradients(matcher, encoded):
    found = matcher()
    images, texts = encoded(found, torch.zeros(1, 2, 5), torch.randn(2, 3, 7), torch.zeros(2, 3, dtype=torch.bool))
    scores = found.score(images, texts)
    scores.sum().backward()
    assert torch.isfinite(scores).all()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in found.parameters())


def test_vectors_are_i0_and_c0_and_alpha_0_skips_the_pair_module(monkeypatch, matcher, given, encoded):
    found, (features, states, mask) = matcher(alpha=0.0), given()
    assert matcher().scoring.reranks
    assert not found.scoring.reranks
    monkeypatch.setattr(found.pairs, "forward", lambda *_, **__: pytest.fail("the pair module was asked"))
    images, texts = encoded(found, features, states, mask)
    cosines = F.normalize(images.vectors, dim=1) @ F.normalize(texts.vectors, dim=1).T
    torch.testing.assert_close(found.score(images, texts), cosines)
    torch.testing.assert_close(found.score_pairs(images, texts.rows(slice(3))), cosines.diagonal())
    torch.testing.assert_close(found.score(images, texts), literal_scores(found, features, states, mask))


def test_a_trained_text_encoder_gives_the_states_and_has_gradients(tiny_bert, tmp_path, matcher):
    encoder = TextEncoder.load(str(tiny_bert)).eval()
    found = matcher(text=TextArchitecture("bert", encoder=encoder.description))
    found.text.encoder.load_state_dict(encoder.state_dict())
    words, mask = torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]]), torch.tensor([[True] * 4, [True] * 3 + [False]])
    images, texts = found.encode_images(torch.randn(2, 3, 5)), found.encode_texts(words, mask)
    frozen = matcher(text=TextArchitecture("states", state_dim=encoder.dim))
    weights = {k.replace("text.pool.", "text."): v for k, v in found.state_dict().items() if "text.encoder" not in k}
    frozen.load_state_dict(weights)
    stored = frozen.encode_texts(encoder(words, mask), mask)
    torch.testing.assert_close(found.score(images, texts), frozen.score(images, stored))
    found.score(images, texts).square().sum().backward()
    assert all(p.grad is not None for p in found.text.encoder.parameters())
    catalog.save(found, tmp_path / "matcher.json", tmp_path / "best.safetensors")
    again = catalog.load(tmp_path / "matcher.json", tmp_path / "best.safetensors")
    assert torch.equal(again.score(images, again.encode_texts(words, mask)), found.score(images, texts))


def literal_shares(unit, parts):
    """(K, K) mean over heads of the softmax of Eq. 11, part by part."""
    size, rows = unit.size, []
    for query in parts:
        heads = []
        for head in range(unit.heads):
            rows_of = slice(head * size, (head + 1) * size)
            keys = [unit.key.weight[rows_of] @ part for part in parts]
            logits = torch.stack([(unit.query.weight[rows_of] @ query) @ key / math.sqrt(size) for key in keys])
            heads.append(logits.exp() / logits.exp().sum())
        rows.append(sum(heads) / unit.heads)
    return torch.stack(rows)


@torch.no_grad()
def test_attention_weights_are_mmca_eq_11_normalised_over_the_other_modality(matcher, given, encoded):
    found, (features, states, mask) = matcher(), given(4, 4)
    images, texts = encoded(found, features, states, mask)
    assert found.attends == {"words", "regions"}
    words, regions = found.attention_weights(images, texts)
    assert words.shape == regions.shape == (4, 4, 6)
    for row in range(4):
        real, spoken = images.mask[row], texts.mask[row]
        shares = literal_shares(found.pairs.unit, [*images.parts[row][real], *texts.parts[row][spoken]])
        count = int(real.sum())
        from_words, from_regions = shares[count:, :count].T, shares[:count, count:]
        expected = from_words / from_words.sum(0), from_regions / from_regions.sum(1, keepdim=True)
        for got, wanted in zip((words[row], regions[row]), expected, strict=True):
            torch.testing.assert_close(got[real][:, spoken], wanted)
            torch.testing.assert_close(got.sum(), wanted.sum())  # padding has no weight
    nothing = found.attention_weights(images, texts._replace(mask=torch.zeros_like(mask)))
    assert not any(shares.any() for shares in nothing)
    assert matcher(alpha=0.0).attends == frozenset()


def test_a_size_that_is_not_a_multiple_of_the_heads_is_refused(matcher):
    with pytest.raises(UserError, match=r"dim=12 is not a multiple of mmca\.heads=5"):
        matcher(heads=5)
