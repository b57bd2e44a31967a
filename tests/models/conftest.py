"""Small MMCA matchers and what they are given."""

from __future__ import annotations

import pytest
import torch

from calligram.models.mmca import MMCA, MMCASettings

SIDES = {"vocabulary": 0, "dim": 12, "feature_dim": 5, "text": "states", "state_dim": 7, "heads": 3, "filters": 4}


def _matcher(**changes):
    torch.manual_seed(0)
    found = MMCA(MMCASettings(**{**SIDES, "alpha": 0.7, **changes})).eval()
    for name, weights in found.named_parameters():  # biases and norms that would hide a mistake as they start
        if weights.ndim == 1:
            torch.nn.init.normal_(weights, 1.0 if "norm.weight" in name else 0.0, 0.5)
    return found


def _given(images=3, texts=4, regions=4, words=6, seed=1):
    """Features with regions that fill up, states with masks; a text of one word among them."""
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
    """Makes an MMCA with weights that hide no mistake."""
    return _matcher


@pytest.fixture(scope="session")
def given():
    """Makes features, states and masks."""
    return _given


@pytest.fixture(scope="session")
def encoded():
    """Encodes these."""
    return _encoded
