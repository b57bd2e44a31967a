"""The application: routes, guards and the page, around a searcher."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

import calligram
from calligram.search.searcher import Searcher
from calligram.serve import about, captioning, explaining, items, locating, problems, searching
from calligram.serve.guard import Guard
from calligram.serve.service import Service
from calligram.serve.settings import Settings

STATIC = Path(__file__).parent / "static"


def create_app(searcher: Searcher, settings: Settings | None = None) -> FastAPI:
    """Serve ``searcher``; by default to this machine only, which is what the Host header must then say."""
    service = Service(searcher, settings or Settings())

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="Calligram",
        version=calligram.__version__,
        description="Search a library of pictures by words, by pictures, or by both.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # its scripts come from another host
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    problems.install(app)
    for router in (searching.router, items.router, locating.router, explaining.router, captioning.router, about.router):
        app.include_router(router)
    app.mount("/", StaticFiles(directory=STATIC, html=True))
    app.add_middleware(Guard, settings=service.settings, metrics=service.metrics)
    return app
