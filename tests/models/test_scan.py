from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from calligram.features.images.backbones import Backbone
from calligram.models.bfan import BFAN, BFANSettings
from calligram.models.layers import score_tiles
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.scan import SCAN, SCANSettings
from calligram.vectors import unit_length

TEXT = TextArchitecture(vocabulary=30, word_dim=6, hidden=12, bidirectional=True)
SIDES = {"image": ImageArchitecture(feature_dim=5), "text": TEXT, "dim": 12}
WORDS = torch.tensor([[1, 5, 6, 7, 2], [1, 9, 2, 0, 0]])
MASK = WORDS > 0


def matchers():
    torch.manual_seed(0)
    return [
        SCAN(SCANSettings(**SIDES)).eval(),
        SCAN(SCANSettings(**SIDES, direction="i2t", aggregation="max")).eval(),
        BFAN(BFANSettings(**SIDES)).eval(),
        BFAN(BFANSettings(**SIDES, focal="prob")).eval(),
    ]


def literal_attended(query, context, temperature, focal):
    """Attention of one item's parts to another's as in the releases, and the cosines of parts and attended vectors."""
    attn = F.leaky_relu(context @ query.T, 0.1)
    attn = torch.softmax(temperature * (attn / (attn.norm(dim=1, keepdim=True) + 1e-8)).T, dim=1)
    if focal == "equal":
        attn = attn * (attn * attn.shape[1] - attn.sum(1, keepdim=True) > 0)
    if focal == "prob":
        attn = attn * (((attn[:, :, None] - attn[:, None]) * attn[:, None].sqrt()).sum(2) > 0)
    return F.cosine_similarity(query, attn / attn.sum(1, keepdim=True) @ context, dim=1)


@pytest.mark.parametrize("number", range(4))
def test_scores_equal_the_arithmetic_of_the_releases(number):
    matcher = matchers()[number]
    images, texts = matcher.encode_images(torch.randn(3, 4, 5)), matcher.encode_texts(WORDS, MASK)
    for i, t in ((i, t) for i in range(3) for t in range(2)):
        regions, words = images.parts[i], texts.parts[t][MASK[t]]
        expected = {
            0: lambda v, w: (6 * literal_attended(w, v, 9.0, "none")).exp().sum().log() / 6,
            1: lambda v, w: literal_attended(v, w, 9.0, "none").max(),
            2: lambda v, w: literal_attended(w, v, 20.0, "equal").mean() + literal_attended(v, w, 20.0, "equal").mean(),
            3: lambda v, w: literal_attended(w, v, 20.0, "prob").mean() + literal_attended(v, w, 20.0, "prob").mean(),
        }[number](regions, words)
        torch.testing.assert_close(matcher.score(images, texts)[i, t], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("number", range(4))
def test_padding_and_the_order_of_regions_do_not_change_the_score(number):
    matcher = matchers()[number]
    features = torch.randn(2, 4, 5)
    texts = matcher.encode_texts(WORDS, MASK)
    plain = matcher.score(matcher.encode_images(features), texts)
    padded = matcher.encode_images(torch.cat([features, torch.zeros(2, 3, 5)], dim=1))
    assert padded.mask.sum(1).tolist() == [4, 4]
    torch.testing.assert_close(matcher.score(padded, texts), plain)
    mixed = matcher.encode_images(features[:, [2, 0, 3, 1]])
    torch.testing.assert_close(matcher.score(mixed, texts), plain)
    torch.testing.assert_close(padded.vectors, matcher.encode_images(features).vectors)
    alone = matcher.encode_texts(WORDS[1:, :3], MASK[1:, :3])
    torch.testing.assert_close(matcher.score(padded, alone), plain[:, 1:])


@pytest.mark.parametrize("number", range(4))
def test_one_region_and_one_word_are_enough(number):
    matcher = matchers()[number]
    one, two = matcher.encode_images(torch.randn(1, 5)), matcher.encode_texts(torch.tensor([[7]]))
    assert one.parts.shape == (1, 1, 12)
    cosine = (one.parts[0, 0] * two.parts[0, 0]).sum()
    expected = 2 * cosine if isinstance(matcher, BFAN) else cosine
    torch.testing.assert_close(matcher.score(one, two), expected.view(1, 1))
    torch.testing.assert_close(matcher.score_pairs(one, two), expected.view(1))
    assert matcher.score_pairs(one.rows(slice(0)), two.rows(slice(0))).shape == (0,)


@pytest.mark.parametrize("number", range(4))
def test_selected_pairs_are_entries_of_all_pairs_for_any_tile_size(number, monkeypatch):
    matcher = matchers()[number]
    torch.manual_seed(0)
    mask = torch.arange(5) < torch.randint(2, 6, (40, 1))
    images = matcher.encode_images(torch.randn(6, 4, 5))
    texts = matcher.encode_texts(torch.randint(4, 30, (40, 5)) * mask, mask)
    rows, columns = torch.randint(6, (70,)), torch.randint(40, (70,))
    expected = matcher.score(images, texts)[rows, columns]
    monkeypatch.setattr(score_tiles, "TILE_TEXTS", {"cpu": (2, 16)})
    for tile in (1, 500, 1 << 20):
        monkeypatch.setattr(score_tiles, "TILE_PRODUCTS", {"cpu": tile})
        torch.testing.assert_close(matcher.score_some(images, texts, rows, columns), expected)
        torch.testing.assert_close(matcher.score_pairs(images.rows(rows), texts.rows(columns)), expected)


@pytest.mark.parametrize("number", range(4))
def test_attention_weights_sum_to_one_over_real_parts(number):
    matcher = matchers()[number]
    features = torch.cat([torch.randn(2, 4, 5), torch.zeros(2, 1, 5)], dim=1)
    images, texts = matcher.encode_images(features), matcher.encode_texts(WORDS, MASK)
    words, regions = matcher.attention_weights(images, texts)
    assert words.shape == regions.shape == (2, 5, 5)
    torch.testing.assert_close(words.sum(1), MASK.float())
    torch.testing.assert_close(regions.sum(2), images.mask.float())
    # The attended vector of a word gives its relevance.
    seen = (words[0, :, 1, None] * images.parts[0]).sum(0)
    focal = getattr(matcher.settings, "focal", "none")
    temperature = matcher.settings.temperature
    expected = literal_attended(texts.parts[0], images.parts[0, :4], temperature, focal)[1]
    torch.testing.assert_close(F.cosine_similarity(seen, texts.parts[0, 1], dim=0), expected, atol=1e-5, rtol=1e-5)


def test_vectors_are_means_of_parts_at_length_one():
    matcher = matchers()[0]
    texts = matcher.encode_texts(WORDS, MASK)
    assert texts.parts.norm(dim=-1)[MASK].sub(1).abs().max() < 1e-5
    torch.testing.assert_close(texts.vectors[1], texts.parts[1, :3].mean(0))
    states, _ = matcher.text.parts(WORDS, MASK)
    torch.testing.assert_close(unit_length(states[0, 1]), texts.parts[0, 1])


def test_cells_of_a_backbone_are_the_parts_trained_or_stored():
    import transformers

    torch.manual_seed(0)
    model = transformers.MobileNetV2Model(transformers.MobileNetV2Config(depth_multiplier=0.2, image_size=64))
    backbone = Backbone(model).eval()
    image = ImageArchitecture("backbone", backbone=backbone.description)
    end_to_end = SCAN(SCANSettings(**{**SIDES, "image": image})).eval()
    end_to_end.image.load_state_dict(backbone.state_dict())
    pixels = torch.randn(2, 3, 64, 64)
    seen = end_to_end.encode_images(pixels)
    cells = backbone(pixels).grid.flatten(2).transpose(1, 2)
    assert seen.parts.shape == (2, cells.shape[1], 12)
    torch.testing.assert_close(end_to_end.encode_images(cells).parts, seen.parts)
    end_to_end.train()
    texts = end_to_end.encode_texts(WORDS, MASK)
    end_to_end.score(end_to_end.encode_images(pixels), texts).sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in end_to_end.image.parameters())
