"""What strangers may not do."""

from __future__ import annotations

import io
import re
import socket
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from PIL import Image

from calligram.serve.guard import cookie_value, host_name, is_admitted, is_own_host, is_token
from calligram.serve.settings import ServerSettings


def bomb(width: int, height: int) -> bytes:
    """A PNG of about a megabyte that unpacks to ``width * height * 3`` bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer, rows = zlib.compressobj(1), []
    for _ in range(height):
        rows.append(packer.compress(b"\0" * (1 + 3 * width)))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    packed = b"".join(rows) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "192.168.1.7", "[::2]", ""]
)
def test_a_foreign_host_name_is_refused_against_dns_rebinding(served, host):
    for path in ("/", "/api/health", "/api/search?q=dog"):
        answer = served.client.get(path, headers={"Host": host})
        assert answer.status_code in (400, 421)
        assert "hits" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "LOCALHOST:9", "[::1]:80"])
def test_own_host_names_are_accepted_with_any_port(served, host):
    assert served.client.get("/api/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://["}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_posts_from_other_sites_are_refused(served, headers):
    answer = served.client.post("/api/search", files={"image": b"x"}, headers=headers)
    assert answer.status_code == 403
    assert "other sites" in answer.json()["error"]


def test_posts_from_the_own_page_are_accepted(served):
    picture = io.BytesIO()
    Image.new("RGB", (9, 9)).save(picture, "PNG")
    answer = served.client.post("/api/search", files={"image": picture.getvalue()}, headers={"Origin": served.url})
    assert answer.status_code == 200


def test_every_answer_has_safe_headers(served):
    for path in ("/", "/main.js", "/api/search?q=dog", "/api/nothing", "/metrics"):
        headers = served.client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc%2fpasswd", "//etc/passwd",
        "/static/../app.py", "/....//etc/passwd", "/%00", "/api/image?id=../../etc/passwd", "/api/image?id=/etc/passwd",
        "/api/thumbnail?id=..%2f..%2fetc%2fpasswd", "/api/image?id=file:///etc/passwd", "/api/item?id=%00",
        "/api/image?id=' or 1=1 --",
    ],
)  # fmt: skip
def test_no_request_can_read_files_outside_of_the_library(served, path):
    """Sent byte for byte: a client library would tidy the path up."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 60) as connection:
        target = path.replace(" ", "%20").encode()
        connection.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert re.match(rb"HTTP/1.1 4\d\d ", answer)
    assert b"root:" not in answer


def test_texts_that_look_like_paths_are_not_opened(served):
    assert served.client.get("/api/search", params={"q": "/etc/passwd", "plus": "./a.png"}).status_code == 200


def test_a_picture_with_too_many_bytes_is_refused_before_it_is_read(served):
    answer = served.client.post("/api/search", files={"image": b"x" * 21_000_000})
    assert answer.status_code == 413
    assert "at most 20 MB" in answer.json()["error"]


def test_a_body_without_a_length_is_counted(served):
    def endless():
        for _ in range(400):
            yield b"--a\r\n" + b"x" * 65536

    try:
        answer = served.client.post(
            "/api/search", content=endless(), headers={"Content-Type": "multipart/form-data; boundary=a"}
        )
    except httpx.WriteError:
        return  # the server hung up, which is as good
    assert answer.status_code in (400, 413)


def test_a_bomb_is_refused_by_its_header(served):
    answer = served.client.post("/api/search", files={"image": bomb(10_000, 9_000)})
    assert answer.status_code == 413
    assert "megapixels" in answer.json()["error"]
    assert served.client.post("/api/search", files={"image": bomb(60_000, 30)}).status_code == 200


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a picture",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    ],
)
def test_a_file_that_is_not_a_picture_is_refused(served, content):
    answer = served.client.post("/api/search", files={"image": ("a.png", content)})
    assert answer.status_code in (400, 415, 422)
    assert answer.json()["error"]


def test_everything_except_the_page_needs_the_token(stranger, token):
    client = stranger
    assert client.get("/").status_code == 200
    assert client.get("/api/health").status_code == 200
    for path in (
        "/api/search?q=dog",
        "/api/stats",
        "/metrics",
        "/api/item?id=x",
        "/api/image?id=x",
        "/api//search?q=a",
    ):
        assert client.get(path).status_code in (401, 404)
    refused = client.get("/api/search?q=dog")
    assert refused.headers["www-authenticate"] == "Bearer"
    for wrong in (f"Bearer {token}x", f"Bearer {token[:-1]}", f"Basic {token}", "Bearer", "Bearer \xfc"):
        given = {"Authorization": wrong.encode("latin-1")}
        assert client.get("/api/search?q=dog", headers=given).status_code == 401
    assert client.get("/api/search?q=dog", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    assert client.post("/api/login", json={"token": "wrong wrong"}).status_code == 401
    login = client.post("/api/login", json={"token": token})
    assert login.status_code == 204
    cookie = login.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert token not in cookie
    assert client.get("/api/search?q=dog").status_code == 200


def test_sixty_four_clients_at_once_are_all_answered(served, client):
    def one(number: int) -> list[int]:
        with client(served.url) as asking:
            return [
                asking.get("/api/search", params={"q": f"dog {number} {turn}", "k": 5}).status_code for turn in range(4)
            ]

    with ThreadPoolExecutor(64) as pool:
        statuses = [status for found in pool.map(one, range(64)) for status in found]
    assert statuses == [200] * 256


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
def test_the_name_is_parsed_from_a_host_header(header, name):
    assert host_name(header) == name


def test_a_host_header_may_have_an_address_or_a_known_name():
    here, anywhere = ServerSettings(), ServerSettings(hosts=frozenset({"pictures.example"}), any_address=True)
    assert is_own_host("127.0.0.5:80", here)
    assert not is_own_host("10.0.0.1", here)
    assert is_own_host("10.0.0.1", anywhere)
    assert is_own_host("Pictures.Example:443", anywhere)
    assert not is_own_host("localhost.example", anywhere)


def test_only_the_token_or_the_cookie_gives_access():
    settings = ServerSettings(token="a long token")
    assert is_admitted("Bearer a long token", "", settings)
    assert is_admitted("bearer a long token", "", settings)
    assert is_admitted("", cookie_value(settings), settings)
    assert not is_admitted("", "a long token", settings)
    assert not is_admitted(f"Bearer {cookie_value(settings)}", "", settings)
    assert not is_admitted("", cookie_value(ServerSettings(token="another token")), settings)
    assert not is_admitted("", "", settings)
    assert is_admitted("", "", ServerSettings())
    assert not is_token("", ServerSettings())
