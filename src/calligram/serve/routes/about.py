"""Routes about the library and the server."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response

import calligram
from calligram.search.library.library import Library
from calligram.serve.guard import RefusedRequest, documented
from calligram.serve.metrics import CONTENT_TYPE
from calligram.serve.schema import HealthAnswer, LoginRequest, StatsAnswer
from calligram.serve.service import Service, service_of
from calligram.serve.settings import COOKIE, MAX_K, MAX_QUERY

router = APIRouter(tags=["server"])
Here = Annotated[Service, Depends(service_of)]


@router.get("/api/health", responses={421: documented()[421]})
async def health(here: Here) -> HealthAnswer:
    """Whether the server answers; needs no token."""
    return HealthAnswer(status="ok", version=calligram.__version__, problem=here.problem)


@router.post("/api/login", status_code=204, response_class=Response, responses=documented(400, 408, 413, 422))
async def login(here: Here, given: LoginRequest) -> Response:
    """Exchange the token for a cookie, so that the page and its pictures may be fetched."""
    response = Response(status_code=204)
    if here.settings.token is None:
        return response
    if not here.settings.is_token(given.token):
        raise RefusedRequest(401, "this is not the token that the server was started with")
    response.set_cookie(COOKIE, here.settings.cookie(), httponly=True, samesite="strict")
    return response


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}, **documented()})
async def metrics(here: Here) -> Response:
    """Counts and times for Prometheus."""
    items = float(here.searcher.library.manifest.counts.get("items", 0))
    return Response(here.metrics.text({"items": items}), media_type=CONTENT_TYPE)


@router.get("/api/stats", responses=documented(503))
async def stats(here: Here) -> StatsAnswer:
    """What the library holds, and what it can be filtered by."""

    def look(library: Library) -> StatsAnswer:
        seen = here.overview(library)
        counts = {name: value for name, value in library.stats().items() if name != "facets"}
        return StatsAnswer(
            stats=counts, facets=dict(seen.facets), examples=list(seen.examples), columns=dict(library.kinds),
            limits={"k": MAX_K, "query": MAX_QUERY, "upload_bytes": here.settings.upload_bytes},
            localizer=here.locating.locator is not None, captioning=here.desk is not None,
        )  # fmt: skip

    return await here.read(look)
