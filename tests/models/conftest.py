"""Small MMCA matchers and their inputs."""

from __future__ import annotations

import pytest
import torch

from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.mmca import MMCA, MMCASettings

TOWERS = {"image": ImageArchitecture(feature_dim=5), "text": TextArchitecture("states", state_dim=7)}
SIDES = {**TOWERS, "dim": 12, "heads": 3, "filters": 4}


def _matcher(**changes):
    torch.manual_seed(0)
    found = MMCA(MMCASettings(**{**SIDES, "alpha": 0.7, **changes})).eval()
    for name, weights in found.named_parameters():  # the initial biases and norms would hide errors
        if weights.ndim == 1:
            torch.nn.init.normal_(weights, 1.0 if "norm.weight" in name else 0.0, 0.5)
    return found


def _given(images=3, texts=4, regions=4, words=6, seed=1):
    """Features with padded regions, and states with masks; one text has one word."""
    torch.manual_seed(seed)
    features, states = torch.randn(images, regions, 5), torch.randn(texts, words, 7)
    features[0, -1] = 0
    lengths = torch.randint(2, words + 1, (texts,))
    lengths[0], lengths[-1] = words, 1
    mask = torch.arange(words) < lengths[:, None]
    return features, states, mask


def _encoded(found, features, states, mask):
    return found.encode_images(features), found.encode_texts(states, mask)


@pytest.fixture(scope="session")
def matcher():
    """Builds an MMCA whose weights hide no errors."""
    return _matcher


@pytest.fixture(scope="session")
def given():
    """Builds features, states and masks."""
    return _given


@pytest.fixture(scope="session")
def encoded():
    """Encodes features and states."""
    return _encoded
