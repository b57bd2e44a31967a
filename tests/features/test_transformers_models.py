"""Models by name, without the hub; and shapes of their outputs."""

from __future__ import annotations

import socket

import pytest
import torch
import transformers
from huggingface_hub import constants
from torch import nn

from calligram import device, hub
from calligram.device import use_half_networks
from calligram.errors import UserError
from calligram.features.texts.text_encoder import TextEncoder
from calligram.features.transformers_models import network_precision, shapes_of_output
from calligram.hub import look_for_hub


@pytest.fixture
def unreachable(monkeypatch):
    """A hub that refuses connections; the addresses that were tried."""
    tried = []

    def refuse(address, timeout):
        tried.append(address)
        raise OSError("no network")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(hub, "getproxies", dict)
    hub.hub_answers.cache_clear()
    yield tried
    hub.hub_answers.cache_clear()


def test_the_cache_alone_is_used_where_the_hub_cannot_be_reached(unreachable):
    with pytest.raises(UserError, match="text encoder 'nobody/nothing' could not be loaded"):
        TextEncoder.load("nobody/nothing")
    look_for_hub("nobody/nothing")
    assert len(unreachable) == 1  # tried once
    assert constants.HF_HUB_OFFLINE


def test_folders_and_proxies_need_no_connection(unreachable, monkeypatch, tmp_path):
    look_for_hub(str(tmp_path))
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://proxy:3128"})
    look_for_hub("nobody/nothing")
    assert not unreachable
    assert not constants.HF_HUB_OFFLINE


class SizeOfNumbers(nn.Module):
    """Its output has as many columns as its input has ones; it counts its passes over real numbers."""

    def __init__(self):
        super().__init__()
        self.layer, self.passes = nn.Linear(4, 6), 0

    def forward(self, values):
        self.passes += values.device.type != "meta"
        return self.layer(values)[:, : int(values.sum())]


def test_shapes_of_an_output_are_computed_without_numbers():
    layer, seen = nn.Linear(4, 6).train(), []
    layer.register_forward_hook(lambda module, given, output: seen.append((module.training, output.device.type)))
    assert shapes_of_output(layer, torch.ones(3, 4)).shape == (3, 6)
    assert seen == [(False, "meta")]
    assert layer.training


def test_a_network_that_reads_numbers_is_run_for_its_shapes():
    network = SizeOfNumbers().train()
    assert shapes_of_output(network, torch.ones(1, 4)).shape == (1, 4)
    assert network.passes == 1
    assert network.training
    assert network.layer.weight.device.type == "cpu"


def test_transformers_alone_run_in_bfloat16_and_only_without_gradients(monkeypatch):
    monkeypatch.setattr(device, "has_fast_bfloat16", lambda device_type: True)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    transformer = transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=8, patch_size=4))
    convolutional = transformers.ResNetModel(
        transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic")
    )

    def in_half(model):
        with network_precision(model, torch.zeros(1)):
            return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16

    with use_half_networks():
        assert not in_half(transformer)
        with torch.no_grad():
            assert in_half(transformer)
            assert not in_half(convolutional)
    with torch.no_grad():
        assert not in_half(transformer)
