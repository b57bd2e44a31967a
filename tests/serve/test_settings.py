from __future__ import annotations

import socket

import pytest

from calligram.errors import UserError
from calligram.serve.settings import Address, ServerSettings


def test_a_short_token_is_refused():
    with pytest.raises(UserError, match="the token has 3 characters; give one of 8 to 200"):
        ServerSettings(token="abc")


def test_an_address_is_loopback_or_not():
    assert Address("127.0.0.1", 1).is_loopback
    assert Address("localhost", 1).is_loopback
    assert Address("::1", 1).is_loopback
    assert not Address("0.0.0.0", 1).is_loopback
    assert Address("127.0.0.1", 1).host_names(["A.example"]) == {"localhost", "a.example"}
    assert Address("::1", 8000).url == "http://[::1]:8000"


def test_a_taken_port_is_reported_and_another_can_be_used():
    with Address("127.0.0.1", 0).listen() as taken:
        taken.listen()
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(UserError, match="--port 0 for any free port"):
            address.listen()
        assert address.or_any_port().port == 0
    with pytest.raises(UserError, match="cannot listen on nowhere"):
        Address("nowhere.invalid", 80).listen()


def test_the_socket_names_tcp_so_that_answers_are_not_delayed():
    with Address("127.0.0.1", 0).listen() as listening:
        assert listening.proto == socket.IPPROTO_TCP
