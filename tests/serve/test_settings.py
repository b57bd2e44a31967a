from __future__ import annotations

import socket

import pytest

from calligram.errors import UserError
from calligram.serve.settings import Address, ServerSettings, host_name


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("Localhost:8000", "localhost"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("", ""),
    ],
)
def test_the_name_is_read_out_of_a_host_header(header, name):
    assert host_name(header) == name


def test_addresses_need_no_name_and_names_must_be_known():
    here, anywhere = ServerSettings(), ServerSettings(hosts=frozenset({"pictures.example"}), anywhere=True)
    assert here.knows_host("127.0.0.5:80")
    assert not here.knows_host("10.0.0.1")
    assert anywhere.knows_host("10.0.0.1")
    assert anywhere.knows_host("Pictures.Example:443")
    assert not anywhere.knows_host("localhost.example")


def test_the_token_or_the_cookie_opens_and_nothing_else_does():
    settings = ServerSettings(token="a long token")
    assert settings.admits("Bearer a long token", "")
    assert settings.admits("bearer a long token", "")
    assert settings.admits("", settings.cookie())
    assert not settings.admits("", "a long token")
    assert not settings.admits(f"Bearer {settings.cookie()}", "")
    assert not settings.admits("", ServerSettings(token="another token").cookie())
    assert not settings.admits("", "")
    assert ServerSettings().admits("", "")
    assert not ServerSettings().is_token("")


def test_a_token_that_can_be_guessed_is_refused():
    with pytest.raises(UserError, match="8 to 200 characters, this one has 3"):
        ServerSettings(token="abc")


def test_an_address_knows_who_can_reach_it():
    assert Address("127.0.0.1", 1).loopback
    assert Address("localhost", 1).loopback
    assert Address("::1", 1).loopback
    assert not Address("0.0.0.0", 1).loopback
    assert Address("127.0.0.1", 1).names(["A.example"]) == {"localhost", "a.example"}
    assert Address("::1", 8000).url == "http://[::1]:8000"


def test_a_taken_port_is_told_and_can_be_avoided():
    with Address("127.0.0.1", 0).listen() as taken:
        taken.listen()
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(UserError, match="--port 0 for any free one"):
            address.listen()
        assert address.or_any().port == 0
    with pytest.raises(UserError, match="cannot listen on nowhere"):
        Address("nowhere.invalid", 80).listen()


def test_a_socket_is_known_to_be_tcp_because_answers_are_delayed_otherwise():
    with Address("127.0.0.1", 0).listen() as listening:
        assert listening.proto == socket.IPPROTO_TCP
