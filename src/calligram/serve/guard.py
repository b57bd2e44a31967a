"""Checks of every request and its answer: access, size of the body, uploaded pictures, errors and safe headers."""

from __future__ import annotations

import asyncio
import hmac
import io
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from PIL import Image, UnidentifiedImageError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calligram.data.pictures import PictureError, decode
from calligram.errors import UserError
from calligram.picture_formats import PICTURE_FORMATS, is_heif, needs_conversion, open_image
from calligram.search.filters.parser import named_columns
from calligram.serve.metrics import Metrics, RateLimits, client_of
from calligram.serve.schema import ErrorAnswer
from calligram.serve.settings import PATH_COLUMNS, PLACE_COLUMNS, ServerSettings
from calligram.text import printable

log = logging.getLogger("calligram.serve")

COOKIE_NAME = "calligram"
TYPE_NAME = re.compile(r"[\[\]()-]")
"""in the place of a fault, the name of one of several types of a field, such as ``list[str]``"""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
PUBLIC_PATHS = ("/api/health", "/api/login", "/api/openapi.json")
"""paths of the API that need no token"""
START_OF_SCAN, EXIF_SEGMENT, IPTC_SEGMENT, ORIENTATION_TAG = 0xDA, 0xE1, 0xED, 0x0112
FORM_OVERHEAD_BYTES = 65_536
"""bytes of a form in addition to its picture"""
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
MEDIA_TYPES = {
    "JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif", "BMP": "image/bmp",
    "AVIF": "image/avif", "TIFF": "image/tiff", "MPO": "image/jpeg",
}  # fmt: skip


# Errors: every answer has a status and a reason, and an id of the log entry if the server is at fault.


class RefusedRequest(Exception):  # noqa: N818 - it is an answer, not a fault
    """A request that is answered with an error status and a reason."""

    def __init__(self, status: int, reason: str, retry_after: int = 0):
        super().__init__(reason)
        self.status, self.reason, self.retry_after = status, reason, retry_after


class QueueFullError(Exception):
    """Too many requests are waiting for a thread."""


class WorkTimeoutError(Exception):
    """The work took longer than the time limit."""


def error_answer(status: int, reason: str, log_id: str | None = None, retry_after: int = 0) -> JSONResponse:
    """An error as JSON."""
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(status)
    headers = {"Retry-After": str(retry_after)} if retry_after else headers
    return JSONResponse({"error": reason, "id": log_id}, status, headers)


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error statuses of a route for the OpenAPI description, with the statuses that every route has."""
    return {status: {"model": ErrorAnswer} for status in (401, 403, 421, 429, 500, *statuses)}


def install_error_handlers(app: FastAPI) -> None:
    """Turn exceptions into answers."""

    @app.exception_handler(RefusedRequest)
    async def refused(request: Request, error: RefusedRequest) -> JSONResponse:
        return error_answer(error.status, error.reason)

    @app.exception_handler(UserError)
    async def user_error(request: Request, error: UserError) -> JSONResponse:
        return error_answer(400, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return error_answer(422, _described(error.errors()))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        response = error_answer(error.status_code, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(QueueFullError)
    async def queue_full(request: Request, error: QueueFullError) -> JSONResponse:
        return error_answer(503, "too many requests are waiting; try again in a second")

    @app.exception_handler(WorkTimeoutError)
    async def timed_out(request: Request, error: WorkTimeoutError) -> JSONResponse:
        return error_answer(503, "the request took too long and was stopped; ask for less, or try again later")


def _described(faults: Sequence[dict[str, Any]]) -> str:
    """The first faults of a request in words. A field of several types has a fault for each type that does not fit."""
    found: dict[str, list[str]] = {}
    for fault in faults:
        where = ".".join(str(part) for part in fault["loc"][1:] if not TYPE_NAME.search(str(part)))
        message = str(fault["msg"])
        found.setdefault(where, []).append(f"{message[:1].lower()}{message[1:]}" if where else message)
    described = {where: ", or ".join(dict.fromkeys(messages)) for where, messages in list(found.items())[:3]}
    return "; ".join(f"{where}: {message}" if where else message for where, message in described.items())


# The middleware that every request passes.


class Guard:
    """The outermost layer of the application. It uses ASGI directly, because it wraps every answer."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics):
        self._app, self._settings, self._metrics = app, settings, metrics
        self._limits = RateLimits(settings.requests_per_second)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or forward it and measure its time."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        self._metrics.in_flight += 1
        try:
            check_access(scope, self._settings)
            if seconds := self._limits.wait_seconds(scope):
                raise RefusedRequest(429, f"too many requests; try again in {seconds} seconds", seconds)
            await self._app(scope, self._limited(scope, receive), send_with_headers)
        except RefusedRequest as refusal:
            answer = error_answer(refusal.status, refusal.reason, retry_after=refusal.retry_after)
            await answer(scope, receive, send_with_headers)
        except Exception:
            log_id = secrets.token_hex(4)
            log.exception("request %s failed: %s %s", log_id, scope["method"], scope["path"])
            if status:
                raise  # the answer has started, so the connection can only be closed
            reason = "the server failed; its log has an entry with this id"
            await error_answer(500, reason, log_id)(scope, receive, send_with_headers)
        finally:
            self._metrics.in_flight -= 1
            took = time.perf_counter() - started
            self._metrics.count_answer(scope["method"], _route(scope), status, took)
            if self._settings.log != "none":
                log.info("%s", log_line(scope, status, took, queries=self._settings.log == "queries"))

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """Limit the bytes of the body, whatever its header claims, and the time in which it must arrive."""
        limit = self._settings.upload_bytes + FORM_OVERHEAD_BYTES
        claimed = Headers(scope=scope).get("content-length", "0")
        seconds = self._settings.timeout_seconds
        deadline, received = time.monotonic() + seconds, 0

        async def limited() -> Message:
            nonlocal received
            if claimed.isdigit() and int(claimed) > limit:
                raise HTTPException(413, _too_many_bytes(self._settings))
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise HTTPException(408, f"the body did not arrive in {seconds:g} seconds; send it again") from None
            received += len(message.get("body", b""))
            if received > limit:
                raise HTTPException(413, _too_many_bytes(self._settings))
            return message

        # Without a body, receive() waits until the client disconnects, and that must not time out.
        return limited if scope["method"] not in SAFE_METHODS else receive


def _too_many_bytes(settings: ServerSettings) -> str:
    return f"a request may have at most {settings.upload_bytes / 1e6:g} MB; send a smaller picture"


def _route(scope: Scope) -> str:
    """The pattern of the route. The path itself would make too many labels of metrics."""
    route = getattr(scope.get("route"), "path", "")
    return route if route.startswith(("/api", "/v1", "/metrics")) else "page"


def log_line(scope: Scope, status: int, seconds: float, *, queries: bool) -> str:
    """One line about a request. It has no token; texts of queries only if they are wanted, because they are private."""
    asked = printable(scope.get("query_string", b"").decode("latin-1")) if queries else ""
    path = f"{printable(scope['path'])}?{asked}" if asked else _route(scope)
    return f"{client_of(scope) or 'local'} {scope['method']} {path} {status} {1000 * seconds:.0f} ms"


# Access: Host, Origin and token.


def check_access(scope: Scope, settings: ServerSettings) -> None:
    """Raise ``RefusedRequest`` unless Host, Origin and token are accepted."""
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if not is_own_host(host, settings):
        raise RefusedRequest(421, f"{host!r} is not a name of this server; allow it with --allow-host")
    if scope["method"] not in SAFE_METHODS and not _same_origin(headers, host):
        raise RefusedRequest(403, "requests from other sites are refused: Origin and Host differ")
    path = scope["path"]
    protected = (path.startswith(("/api/", "/v1/")) or path == "/metrics") and path not in PUBLIC_PATHS
    cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE_NAME, "")
    if protected and not is_admitted(headers.get("authorization", ""), cookie, settings):
        raise RefusedRequest(401, 'a token is needed: send it as "Authorization: Bearer TOKEN", or log in on the page')


def is_own_host(header: str, settings: ServerSettings) -> bool:
    """Whether a Host header names this server.

    A page on another site can let its own name point to a loopback address and read what is served there (DNS
    rebinding). It cannot choose the name that the browser then sends. Addresses are no names, so they are safe.
    """
    name = host_name(header)
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name in settings.hosts
    return settings.any_address or address.is_loopback


def host_name(header: str) -> str:
    """The name in ``name``, ``name:port`` or ``[address]:port``, in lower case."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def is_admitted(authorization: str, cookie: str, settings: ServerSettings) -> bool:
    """Whether no token is set, or the request has the token or the cookie of the page."""
    if settings.token is None:
        return True
    scheme, _, given = authorization.partition(" ")
    return (scheme.lower() == "bearer" and is_token(given.strip(), settings)) or _equal(cookie, cookie_value(settings))


def is_token(given: str, settings: ServerSettings) -> bool:
    """Whether this is the token; takes the same time however much of it is right."""
    return settings.token is not None and _equal(given, settings.token)


def cookie_value(settings: ServerSettings) -> str:
    """The cookie that the page gets for the token. Nobody can compute the token from it."""
    return hmac.new((settings.token or "").encode(), b"calligram page", "sha256").hexdigest()


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _same_origin(headers: Headers, host: str) -> bool:
    """Whether the request comes from our page or from a program. Only browsers send Origin."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    try:
        return urlsplit(origin).netloc.lower() == host.strip().lower() != ""
    except ValueError:
        return False


# Uploaded pictures: their format and size are checked before they are decoded.


def read_upload(content: bytes, settings: ServerSettings) -> Image.Image:
    """Decode an uploaded picture.

    Raises:
        RefusedRequest: if it has too many pixels (by its header, so a decompression bomb is never decoded), or is not
            a picture.
    """
    if not content:
        raise RefusedRequest(400, "the picture is empty; send the bytes of a picture file")
    try:
        with open_image(content) as opened:
            width, height = opened.size
    except UserError:  # an extra is missing; how to install it is for the owner of the server
        raise RefusedRequest(415, "this server cannot read HEIC or raw pictures; send a JPEG") from None
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        if isinstance(error, Image.DecompressionBombError):
            raise RefusedRequest(413, _too_many_pixels(settings)) from None
        raise RefusedRequest(415, f"this is not a picture; accepted formats: {', '.join(PICTURE_FORMATS)}") from None
    if width * height > settings.upload_pixels:
        raise RefusedRequest(413, _too_many_pixels(settings))
    try:
        return decode(content)
    except PictureError as error:
        raise RefusedRequest(415, f"the picture cannot be read: {error}") from None


def media_type(picture: bytes) -> str:
    """The media type of a stored picture by its content. The file name may be wrong, and browsers must not guess."""
    try:
        if is_heif(picture):
            return "image/heic"
        with Image.open(io.BytesIO(picture), formats=PICTURE_FORMATS) as opened:
            return MEDIA_TYPES.get(opened.format or "", "application/octet-stream")
    except Exception:  # a file that cannot be opened may still be downloaded
        return "application/octet-stream"


def browser_picture(picture: bytes) -> bytes:
    """A picture file that browsers show: HEIC and raw files become a JPEG without metadata."""
    try:
        return _as_jpeg(decode(picture)) if needs_conversion(picture) else picture
    except PictureError:  # a damaged file may still be downloaded
        return picture


def _too_many_pixels(settings: ServerSettings) -> str:
    return f"a picture may have at most {settings.upload_pixels / 1e6:g} megapixels; send a smaller one"


# Places: where pictures were taken is shown to this machine only, unless the owner allows more.


def sees_places(request: Request, settings: ServerSettings) -> bool:
    """Whether the client of a request may know where pictures were taken."""
    return settings.show_places or not client_of(request.scope)


def sees_paths(request: Request) -> bool:
    """Whether the client of a request may know where files are on this machine: only the owner, who sits at it."""
    return not client_of(request.scope)


def hidden_columns(request: Request, settings: ServerSettings) -> frozenset[str]:
    """Columns that the client of a request may not know: they tell places, or paths of this machine."""
    places = () if sees_places(request, settings) else PLACE_COLUMNS
    return frozenset(places if sees_paths(request) else (*places, *PATH_COLUMNS))


def refuse_hidden_columns(request: Request, settings: ServerSettings, where: str) -> None:
    """Refuse a condition by which a client could find out what it may not know."""
    if hidden := named_columns(where) & hidden_columns(request, settings):
        todo = "use folder" if hidden & set(PATH_COLUMNS) else "see --show-places"
        raise RefusedRequest(403, f"conditions on {min(hidden)} are for the machine of the server only; {todo}")


def without_place(picture: bytes) -> bytes:
    """A picture file without metadata, such as the place; its pixels and its orientation stay.

    A JPEG keeps its compressed pixels. Other files with metadata become a JPEG.
    """
    if not picture.startswith(b"\xff\xd8"):
        marks = (b"Exif", b"EXIF", b"eXIf", b"xmpmeta", b"II*\0", b"MM\0*")
        has_metadata = needs_conversion(picture) or any(mark in picture for mark in marks)
        return _as_jpeg(decode(picture)) if has_metadata else picture
    kept, place = [picture[:2]], 2
    while picture[place : place + 1] == b"\xff" and picture[place + 1] != START_OF_SCAN:
        size = 2 + int.from_bytes(picture[place + 2 : place + 4], "big")
        if picture[place + 1] not in (EXIF_SEGMENT, IPTC_SEGMENT):
            kept.append(picture[place : place + size])
        place += size
    with Image.open(io.BytesIO(picture), formats=PICTURE_FORMATS) as opened:
        turned = Image.Exif()
        turned[ORIENTATION_TAG] = opened.getexif().get(ORIENTATION_TAG, 1)
    block = turned.tobytes()
    kept.insert(1, b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block)
    return b"".join((*kept, picture[place:]))


def _as_jpeg(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "JPEG", quality=95)
    return stream.getvalue()
