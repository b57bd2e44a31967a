"""Routes about the library and the server: health, login, metrics and statistics."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

import calligram
from calligram.search.library.library import Library
from calligram.serve.guard import (
    COOKIE_NAME,
    RefusedRequest,
    cookie_value,
    error_responses,
    hidden_columns,
    is_token,
    sees_paths,
)
from calligram.serve.metrics import CONTENT_TYPE
from calligram.serve.schema import HealthAnswer, LoginRequest, StatsAnswer
from calligram.serve.service import Service, service_of
from calligram.serve.settings import MAX_HITS, MAX_QUERY_CHARACTERS

router = APIRouter(tags=["server"])
CurrentService = Annotated[Service, Depends(service_of)]


@router.get("/api/health", responses={421: error_responses()[421]})
async def health(service: CurrentService) -> HealthAnswer:
    """Whether the server answers. It needs no token."""
    return HealthAnswer(status="ok", version=calligram.__version__, problem=service.problem)


@router.post("/api/login", status_code=204, response_class=Response, responses=error_responses(400, 408, 413, 422))
async def login(service: CurrentService, given: LoginRequest) -> Response:
    """Exchange the token for a cookie, so that a browser can load the page and its pictures."""
    response = Response(status_code=204)
    if service.settings.token is None:
        return response
    if not is_token(given.token, service.settings):
        raise RefusedRequest(401, "this is not the token of this server; ask the person who started it")
    response.set_cookie(COOKIE_NAME, cookie_value(service.settings), httponly=True, samesite="strict")
    return response


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}, **error_responses()})
async def metrics(service: CurrentService) -> Response:
    """Counts and times for Prometheus."""
    items = float(service.searcher.library.manifest.counts.get("items", 0))
    return Response(service.metrics.text({"items": items}), media_type=CONTENT_TYPE)


@router.get("/api/stats", responses=error_responses(503))
async def stats(service: CurrentService, http: Request) -> StatsAnswer:
    """What the library contains, and how it can be filtered. Other machines do not see where its files are."""
    shown, hidden = sees_paths(http), hidden_columns(http, service.settings)

    def read(library: Library) -> StatsAnswer:
        overview = service.overview(library)
        counts = {name: value for name, value in library.stats().items() if name != "facets"}
        if not shown:
            counts |= {name: _names(counts[name]) for name in ("sources", "matcher", "reranker", "localizer")}
        facets = {name: values for name, values in overview.facets.items() if name not in hidden}
        return StatsAnswer(
            stats=counts, facets=facets, examples=list(overview.examples), columns=dict(library.kinds),
            limits={"k": MAX_HITS, "query": MAX_QUERY_CHARACTERS, "upload_bytes": service.settings.upload_bytes},
            localizer=service.localizer_state.localizer is not None, captioning=service.captions is not None,
            saving=service.settings.may_save,
        )  # fmt: skip

    return await service.read(read)


def _names(paths: object) -> object:
    """The last parts of paths."""
    if isinstance(paths, list):
        return [_names(path) for path in paths]
    return PurePath(paths).name if isinstance(paths, str) else paths
