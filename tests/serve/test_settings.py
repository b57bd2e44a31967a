from __future__ import annotations

import socket

import pytest

from calligram.errors import UserError
from calligram.serve.settings import Address, ServerSettings


def test_a_token_that_can_be_guessed_is_refused():
    with pytest.raises(UserError, match="the token has 3 characters; give one of 8 to 200"):
        ServerSettings(token="abc")


def test_an_address_knows_who_can_reach_it():
    assert Address("127.0.0.1", 1).is_loopback
    assert Address("localhost", 1).is_loopback
    assert Address("::1", 1).is_loopback
    assert not Address("0.0.0.0", 1).is_loopback
    assert Address("127.0.0.1", 1).host_names(["A.example"]) == {"localhost", "a.example"}
    assert Address("::1", 8000).url == "http://[::1]:8000"


def test_a_taken_port_is_told_and_can_be_avoided():
    with Address("127.0.0.1", 0).listen() as taken:
        taken.listen()
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(UserError, match="--port 0 for any free port"):
            address.listen()
        assert address.or_any_port().port == 0
    with pytest.raises(UserError, match="cannot listen on nowhere"):
        Address("nowhere.invalid", 80).listen()


def test_a_socket_is_known_to_be_tcp_because_answers_are_delayed_otherwise():
    with Address("127.0.0.1", 0).listen() as listening:
        assert listening.proto == socket.IPPROTO_TCP
