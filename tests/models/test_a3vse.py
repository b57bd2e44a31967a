from __future__ import annotations

import math

import pytest
import torch

from calligram.models.a3vse import A3VSE, A3VSESettings, ContextAttention
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture

TEXT = TextArchitecture("lstm", vocabulary=30, word_dim=6, hidden=8)
SIDES = {"image": ImageArchitecture(feature_dim=5), "text": TEXT, "dim": 8, "context": 7}


def literal_eq_1(attention: ContextAttention, parts: list[list[float]], heads: int, temperature: float) -> list[float]:
    """E(V) number by number: contexts, logits, softmax over the parts, and weighted sums, head by head."""
    size, count = len(parts[0]), len(parts)
    mean = [sum(part[d] for part in parts) / count for d in range(size)]
    of_head = [
        weights.tolist() for layer in (attention.whole, attention.parts) for weights in layer.weight.chunk(heads)
    ]
    found = []
    for k in range(heads):
        p, q = of_head[k], of_head[heads + k]
        context = [math.tanh(sum(row[d] * mean[d] for d in range(size))) for row in p]
        logits = [
            sum(c * math.tanh(sum(row[d] * part[d] for d in range(size))) for c, row in zip(context, q, strict=True))
            for part in parts
        ]
        exponentials = [math.exp(temperature * logit) for logit in logits]
        shares = [value / sum(exponentials) for value in exponentials]
        found += [sum(share * part[d] for share, part in zip(shares, parts, strict=True)) for d in range(size)]
    return found


@pytest.mark.parametrize(("heads", "temperature"), [(1, None), (3, 2.5)])
def test_attention_is_a3vse_eq_1_and_ignores_padding(heads, temperature):
    torch.manual_seed(0)
    attention = ContextAttention(6, heads, 4, temperature).double()
    parts, real = torch.randn(3, 5, 6, dtype=torch.float64), torch.ones(3, 5, dtype=torch.bool)
    real[1, 3:] = False
    real[2, :4] = False
    found = attention(parts, real)
    assert found.shape == (3, heads, 6)
    for item in range(3):
        # The context size is four, so the default lambda is a half.
        expected = literal_eq_1(attention, parts[item][real[item]].tolist(), heads, temperature or 0.5)
        torch.testing.assert_close(
            found[item].flatten(), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0
        )
    shares = attention.weights(parts, real)
    torch.testing.assert_close(shares.sum(-1), torch.ones(3, heads, dtype=torch.float64))
    assert not shares.transpose(1, 2)[~real].any()


def test_an_item_without_parts_has_a_zero_vector():
    matcher = A3VSE(A3VSESettings(**SIDES)).eval()
    found = matcher.encode_images(torch.zeros(2, 3, 5)).vectors
    assert torch.equal(found, torch.zeros_like(found))
    assert torch.isfinite(matcher.score(matcher.encode_images(torch.zeros(1, 3, 5)),
                                        matcher.encode_texts(torch.ones(1, 2, dtype=torch.long)))).all()  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "size"), [({}, 24), ({"heads": 2}, 16), ({"merge": "mean"}, 8), ({"attention": "mean"}, 8)]
)
def test_heads_are_concatenated_or_averaged_and_the_ablation_has_none(changes, size):
    torch.manual_seed(0)
    matcher = A3VSE(A3VSESettings(**SIDES, **changes)).eval()
    features, words = torch.randn(2, 4, 5), torch.randint(4, 30, (2, 6))
    assert matcher.encode_images(features).vectors.shape == matcher.encode_texts(words).vectors.shape == (2, size)
    if changes.get("attention") == "mean":
        torch.testing.assert_close(matcher.encode_images(features).vectors, matcher.project(features).mean(1))
        names = {name for name, _ in matcher.named_parameters()}
        assert not any("attention" in name for name in names)


def test_the_towers_have_separate_attention_weights():
    matcher = A3VSE(A3VSESettings(**SIDES))
    assert matcher.image_attention.whole.weight is not matcher.text_attention.whole.weight
    assert {name.partition(".")[0] for name, _ in matcher.named_parameters()} == {
        "project", "text", "image_attention", "text_attention",
    }  # fmt: skip


def test_features_are_not_normalised():
    torch.manual_seed(0)
    matcher = A3VSE(A3VSESettings(**SIDES, attention="mean")).eval()
    features = torch.randn(1, 4, 5)
    bias = matcher.project.bias
    one, two = matcher.encode_images(features).vectors, matcher.encode_images(3 * features).vectors
    torch.testing.assert_close(two - bias, 3 * (one - bias))


def test_a_higher_temperature_concentrates_attention():
    torch.manual_seed(0)
    parts, real = torch.randn(4, 9, 6), torch.ones(4, 9, dtype=torch.bool)
    entropies = []
    for temperature in (0.0, 1.0, 20.0):
        torch.manual_seed(1)
        shares = ContextAttention(6, 2, 5, temperature).weights(parts, real).detach()
        entropies.append(float(-(shares * shares.clamp(min=1e-12).log()).sum(-1).mean()))
    assert entropies[0] == pytest.approx(math.log(9))
    assert entropies[0] > entropies[1] > entropies[2]
