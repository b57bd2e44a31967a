"""What every request passes: Host, Origin and token are checked, bodies limited, answers given safe headers."""

from __future__ import annotations

import asyncio
import io
import logging
import secrets
import time
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
from calligram.serve.metrics import Metrics
from calligram.serve.schema import ErrorAnswer
from calligram.serve.settings import COOKIE, ServerSettings
from calligram.serve.workers import BusyError, LateError

# Whatever goes wrong is answered in one form: a status, a reason, and for our own faults an id.


class RefusedRequest(Exception):  # noqa: N818 - it is an answer, not a fault
    """A request that goes no further, with the status and the reason it is told."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


def answer(status: int, reason: str, number: str | None = None) -> JSONResponse:
    """The one form."""
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(status)
    return JSONResponse({"error": reason, "id": number}, status, headers)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route's description says of refusals, beside those that any request can meet."""
    return {status: {"model": ErrorAnswer} for status in (401, 403, 421, 500, *statuses)}


def install(app: FastAPI) -> None:
    """Turn exceptions into answers."""

    @app.exception_handler(RefusedRequest)
    async def refused(request: Request, error: RefusedRequest) -> JSONResponse:
        return answer(error.status, error.reason)

    @app.exception_handler(UserError)
    async def user_error(request: Request, error: UserError) -> JSONResponse:
        return answer(400, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return answer(422, "; ".join(_say(fault) for fault in error.errors()[:3]))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        response = answer(error.status_code, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> JSONResponse:
        return answer(503, "too many searches are waiting; try again in a second")

    @app.exception_handler(LateError)
    async def late(request: Request, error: LateError) -> JSONResponse:
        return answer(503, "the search took too long and was given up; ask for less, or try again later")


def _say(fault: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in fault["loc"][1:])
    message = str(fault["msg"])
    return f"{where}: {message[:1].lower()}{message[1:]}" if where else message


log = logging.getLogger("calligram.serve")

SAFE = ("GET", "HEAD", "OPTIONS")
FORM_SLACK = 65_536
"""bytes of a form besides the picture in it"""
UNGUARDED = ("/api/health", "/api/login", "/api/openapi.json")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Guard:
    """The outermost layer of the application; written against ASGI because it wraps every single answer."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics):
        self._app, self._settings, self._metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on and measure."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        self._metrics.in_flight += 1
        try:
            check(scope, self._settings)
            await self._app(scope, self._limited(scope, receive), noting)
        except RefusedRequest as refusal:
            await answer(refusal.status, refusal.reason)(scope, receive, noting)
        except Exception:
            number = secrets.token_hex(4)
            log.exception("request %s failed: %s %s", number, scope["method"], scope["path"])
            if status:
                raise  # the answer has begun, and the connection can only be broken off
            await answer(500, "the server failed; its log says why under this id", number)(scope, receive, noting)
        finally:
            self._metrics.in_flight -= 1
            self._metrics.answered(scope["method"], _route(scope), status, time.perf_counter() - began)

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """Count the bytes of the body, whatever its header claims, and do not wait for it for ever."""
        limit = self._settings.upload_bytes + FORM_SLACK
        claimed = Headers(scope=scope).get("content-length", "0")
        deadline, seen = time.monotonic() + self._settings.timeout, 0

        async def limited() -> Message:
            nonlocal seen
            if claimed.isdigit() and int(claimed) > limit:
                raise HTTPException(413, too_large(self._settings))
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise HTTPException(408, f"the body did not arrive in {self._settings.timeout:g} seconds") from None
            seen += len(message.get("body", b""))
            if seen > limit:
                raise HTTPException(413, too_large(self._settings))
            return message

        # Without a body, waiting means waiting for the client to leave, and that has no limit.
        return limited if scope["method"] not in SAFE else receive


def too_large(settings: ServerSettings) -> str:
    """Say what a picture may weigh, which is the most that anything may."""
    return f"a picture, or whatever is sent, may have at most {settings.upload_bytes / 1e6:g} MB; send less"


def check(scope: Scope, settings: ServerSettings) -> None:
    """Let a request pass or raise ``Refused``."""
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if not settings.knows_host(host):
        raise RefusedRequest(421, f"this server does not go by the name {host!r}; allow it with --allow-host")
    if scope["method"] not in SAFE and not _from_here(headers, host):
        raise RefusedRequest(403, "requests from other sites are refused: Origin and Host differ")
    path = scope["path"]
    guarded = (path.startswith("/api/") or path == "/metrics") and path not in UNGUARDED
    cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
    if guarded and not settings.admits(headers.get("authorization", ""), cookie):
        raise RefusedRequest(401, 'a token is needed: send it as "Authorization: Bearer TOKEN", or log in on the page')


def _from_here(headers: Headers, host: str) -> bool:
    """Browsers name the page that asks in Origin; other programs send none."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    try:
        return urlsplit(origin).netloc.lower() == host.strip().lower() != ""
    except ValueError:
        return False


def _route(scope: Scope) -> str:
    """The route's pattern, never the path itself: labels of metrics must be few."""
    route = getattr(scope.get("route"), "path", "")
    return route if route.startswith(("/api", "/metrics")) else "page"


# Pictures that come from outside: limited before they are decoded.

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""the only decoders that bytes of strangers may reach"""
TYPES = {
    "JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif", "BMP": "image/bmp",
    "AVIF": "image/avif", "TIFF": "image/tiff",
}  # fmt: skip


def read_picture(content: bytes, settings: ServerSettings) -> Image.Image:
    """Decode an upload.

    Raises:
        Refused: when it has too many pixels (its header tells, so a bomb is never unpacked) or is no picture.
    """
    if not content:
        raise RefusedRequest(400, "the picture is empty")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            width, height = opened.size
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        if isinstance(error, Image.DecompressionBombError):
            raise RefusedRequest(413, _too_many(settings)) from None
        raise RefusedRequest(415, f"this is not a picture we can read; known: {', '.join(FORMATS)}") from None
    if width * height > settings.upload_pixels:
        raise RefusedRequest(413, _too_many(settings))
    try:
        return decode(content)
    except PictureError as error:
        raise RefusedRequest(415, f"the picture cannot be read: {error}") from None


def content_type(picture: bytes) -> str:
    """The type of a stored picture by its bytes; a name may lie, and a browser must not guess."""
    try:
        with Image.open(io.BytesIO(picture)) as opened:
            return TYPES.get(opened.format or "", "application/octet-stream")
    except Exception:  # what cannot be opened is still the owner's file, and may be fetched
        return "application/octet-stream"


def _too_many(settings: ServerSettings) -> str:
    return f"a picture may have at most {settings.upload_pixels / 1e6:g} megapixels; send a smaller one"
