from __future__ import annotations

import pytest
import torch

from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.vsrn import VSRN, MaskedBatchNorm, RegionReasoning, VSRNSettings

TEXT = TextArchitecture(vocabulary=30, word_dim=6, hidden=12, pooling="last")
SIDES = {"image": ImageArchitecture(feature_dim=5), "text": TEXT, "dim": 12}
WORDS = torch.tensor([[1, 5, 6, 7, 2], [1, 9, 2, 0, 0]])
MASK = WORDS > 0


def test_region_reasoning_equals_the_literal_loop():
    torch.manual_seed(0)
    step = RegionReasoning(6).double().eval()
    torch.nn.init.normal_(step.norm.weight)
    torch.nn.init.normal_(step.norm.running_mean)
    regions = torch.randn(2, 4, 6, dtype=torch.float64)
    found = step(regions, torch.ones(2, 4, dtype=torch.bool))
    for image in range(2):
        for i in range(4):
            total = torch.zeros(6, dtype=torch.float64)
            for j in range(4):
                weight = step.theta(regions[image, i]) @ step.phi(regions[image, j]) / 4
                total += weight * step.values(regions[image, j])
            norm = step.norm
            scaled = (step.out(total) - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
            torch.testing.assert_close(found[image, i], scaled * norm.weight + norm.bias + regions[image, i])


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_regions_equals_that_of_the_real_regions_alone(training):
    torch.manual_seed(0)
    ours, plain = MaskedBatchNorm(6).double().train(training), torch.nn.BatchNorm1d(6).double().train(training)
    torch.nn.init.normal_(ours.weight)
    torch.nn.init.uniform_(ours.running_var, 0.5, 2)
    plain.load_state_dict(ours.state_dict())
    regions = torch.randn(3, 4, 6, dtype=torch.float64)
    real = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    gradients = []
    for run in (lambda x: ours(x, real)[real], lambda x: plain(x[real])):
        x = regions.clone().requires_grad_()
        found = run(x)
        found.square().sin().sum().backward()
        gradients.append((found.detach(), x.grad))
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(ours.state_dict(), plain.state_dict())
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad)


def test_region_reasoning_starts_as_the_identity_and_excludes_padding():
    torch.manual_seed(0)
    step = RegionReasoning(6).train()
    regions, real = torch.randn(3, 4, 6), torch.ones(3, 4, dtype=torch.bool)
    assert torch.equal(step(regions, real), regions)
    torch.nn.init.ones_(step.norm.weight)
    plain = step(regions, real)
    longer = torch.cat([regions, torch.zeros(3, 2, 6)], dim=1)
    mask = torch.cat([real, torch.zeros(3, 2, dtype=torch.bool)], dim=1)
    found = step(longer, mask)
    torch.testing.assert_close(found[:, :4], plain)
    assert not found[:, 4:].any()


def test_the_image_vector_is_the_last_gru_state_over_regions_in_their_order():
    torch.manual_seed(0)
    matcher = VSRN(VSRNSettings(**SIDES, layers=2)).eval()
    features = torch.randn(2, 4, 5)
    regions = matcher.project(features)
    regions = regions / regions.norm(dim=1, keepdim=True)  # over regions, as in the release
    # Reasoning starts as the identity, so these are normalised already.
    _, last = matcher.reader(regions)
    found = matcher.encode_images(features)
    torch.testing.assert_close(found.vectors, last[0])
    assert found.parts is None
    padded = torch.cat([torch.zeros(2, 1, 5), features, torch.zeros(2, 2, 5)], dim=1)
    torch.testing.assert_close(matcher.encode_images(padded).vectors, found.vectors)
    assert not torch.allclose(matcher.encode_images(features.flip(1)).vectors, found.vectors)
    assert matcher.train().encode_images(padded).parts.shape == (2, 7, 12)


def literal_vector(matcher: VSRN, features: torch.Tensor) -> torch.Tensor:
    """The image vector of the release, step by step, for images without padding."""

    def l2norm(regions):
        return regions / regions.norm(dim=1, keepdim=True)

    regions = matcher.project(features)
    if matcher.settings.norm_before:
        regions = l2norm(regions)
    everything = torch.ones(features.shape[:2], dtype=torch.bool)
    for step in matcher.reasoning:
        regions = step(regions, everything)
    _, last = matcher.reader(l2norm(regions))
    return last[0]


@pytest.mark.parametrize("norm_before", [True, False])
def test_regions_are_normalised_after_the_reasoning_and_before_it_if_asked(norm_before):
    torch.manual_seed(0)
    matcher = VSRN(VSRNSettings(**SIDES, layers=2, norm_before=norm_before)).eval()
    for step in matcher.reasoning:  # not the identity, so that the reasoning changes the norms
        torch.nn.init.ones_(step.norm.weight)
    features = torch.randn(2, 4, 5)
    with torch.no_grad():
        found, expected = matcher.encode_images(features).vectors, literal_vector(matcher, features)
        torch.testing.assert_close(found, expected)
        regions = matcher.train().encode_images(features).parts
    torch.testing.assert_close(regions.norm(dim=1), torch.ones(2, 12))


def test_norm_before_changes_the_vectors():
    vectors = []
    for norm_before in (True, False):
        torch.manual_seed(0)
        matcher = VSRN(VSRNSettings(**SIDES, layers=1, norm_before=norm_before)).eval()
        torch.nn.init.ones_(matcher.reasoning[0].norm.weight)
        vectors.append(matcher.encode_images(torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(1))).vectors)
    assert not torch.allclose(*vectors, atol=1e-3)


def test_batch_norm_applies_to_the_image_vector():
    torch.manual_seed(0)
    matcher = VSRN(VSRNSettings(**SIDES, layers=1, batch_norm=True)).eval()
    torch.nn.init.normal_(matcher.norm.running_mean)
    torch.nn.init.uniform_(matcher.norm.running_var, 0.5, 2)
    features = torch.randn(2, 4, 5)
    expected = matcher.norm(literal_vector(matcher, features))
    torch.testing.assert_close(matcher.encode_images(features).vectors, expected)
    assert not torch.allclose(expected, literal_vector(matcher, features), atol=1e-2)
