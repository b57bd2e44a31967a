"""Models by name, without the hub."""

from __future__ import annotations

import socket

import pytest
from huggingface_hub import constants

from calligram import hub
from calligram.errors import UserError
from calligram.features.texts.text_encoder import TextEncoder
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
