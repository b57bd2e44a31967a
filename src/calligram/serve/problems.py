"""Whatever goes wrong is answered in one form: a status, a reason, and for our own faults an id."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from calligram.errors import UserError
from calligram.serve.schema import Problem
from calligram.serve.workers import BusyError, LateError


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault
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
    return {status: {"model": Problem} for status in (401, 403, 421, 500, *statuses)}


def install(app: FastAPI) -> None:
    """Turn exceptions into answers."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
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
