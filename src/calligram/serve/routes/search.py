"""Routes that search."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Form, Query
from fastapi.responses import Response
from PIL import Image

from calligram.search.filters.parser import parse
from calligram.search.library.library import Library
from calligram.search.query.query import WEIGHTED, ItemId, Term
from calligram.search.query.query import Query as Terms
from calligram.search.query.rerank import TimeBudget
from calligram.search.query.searcher import DEPTH, Results, Searcher
from calligram.serve.guard import RefusedRequest, documented, read_picture
from calligram.serve.schema import BrowseAnswer, HitAnswer, ImageSearchRequest, SearchAnswer, SearchRequest
from calligram.serve.service import SAMPLE, Service, service_of
from calligram.serve.settings import MAX_K, MAX_WHERE

router = APIRouter(prefix="/api", tags=["search"])
Here = Annotated[Service, Depends(service_of)]


@router.get("/search", response_model=SearchAnswer, responses=documented(400, 404, 422, 503))
async def search(here: Here, ask: Annotated[SearchRequest, Query()]) -> Response:
    """Find pictures or captions by words, by items, or by both."""
    results = await here.search(lambda searcher: run(searcher, ask, None, here.settings.budget_ms))
    return respond(here, results)


@router.post("/search", response_model=SearchAnswer, responses=documented(400, 404, 408, 413, 415, 422, 503))
async def search_by_image(
    here: Here, ask: Annotated[ImageSearchRequest, Form(media_type="multipart/form-data")]
) -> Response:
    """Find pictures or captions by a picture that is sent along, and words if you like."""
    content = await ask.image.read()

    def work(searcher: Searcher) -> Results:
        return run(searcher, ask, read_picture(content, here.settings), here.settings.budget_ms)

    return respond(here, await here.search(work))


@router.get("/browse", responses=documented(400, 422, 503))
async def browse(
    here: Here,
    k: Annotated[int, Query(ge=1, le=MAX_K)] = SAMPLE,
    where: Annotated[str, Query(max_length=MAX_WHERE)] = "",
) -> BrowseAnswer:
    """Pictures without a query: a sample of the library, or some of those for which a condition holds."""

    def look(library: Library) -> list[HitAnswer]:
        ids = pick(library, where, k) if where.strip() else here.overview(library).sample[:k]
        items = library.items(ids)
        return [
            HitAnswer(id=item.id, score=0.0, rank=rank, path=None if item.path is None else str(item.path), text=None)
            for rank, item in enumerate(items, 1)
        ]

    return BrowseAnswer(hits=await here.read(look))


def pick(library: Library, where: str, k: int) -> list[str]:
    """Ids for which the condition holds, in the order of a fixed direction: any order would do, if it stays."""
    direction = np.random.default_rng(0).normal(size=(1, library.images.dim)).astype(np.float32)
    direction /= np.linalg.norm(direction)
    return [found.id for found in library.images.search(direction, k, parse(where, library.kinds))[0]]


def run(searcher: Searcher, ask: SearchRequest, picture: Image.Image | None, budget_ms: float | None = None) -> Results:
    """Ask the searcher; its words about what is wrong with a query are the answer's.

    Args:
        budget_ms: of requests that say nothing of depth or budget.
    """
    query = terms(ask, picture)
    find = searcher.images if ask.find == "images" else searcher.texts
    depth = wanted_depth(ask, budget_ms)
    return find(query, ask.k, where=ask.where.strip() or None, all=ask.all, hybrid=ask.hybrid, depth=depth)


def wanted_depth(ask: SearchRequest, budget_ms: float | None) -> int | TimeBudget:
    """How many candidates are re-ranked, or how long it may take."""
    if ask.depth is not None and ask.budget_ms is not None:
        raise RefusedRequest(
            400, "give depth, how many candidates are re-ranked, or budget_ms, which chooses it; not both"
        )
    if ask.depth is not None:
        return ask.depth
    chosen = ask.budget_ms or budget_ms
    return DEPTH if chosen is None else TimeBudget.of_milliseconds(chosen)


def terms(ask: SearchRequest, picture: Image.Image | None) -> Terms:
    """What is wanted and what is not, with weights. Texts stay texts: a request cannot name a file."""
    found = [Term(ask.q)] if ask.q.strip() else []
    found += [] if picture is None else [Term(picture)]
    found += [Term(ItemId(id)) for id in ask.like]
    found += [weighted(text) for text in ask.plus]
    if not found:
        raise RefusedRequest(400, "the query is empty; give q, plus, like or a picture to search for")
    found += [Term(ItemId(id), -1.0) for id in ask.unlike]
    found += [weighted(text, -1.0) for text in ask.minus]
    return Terms(tuple(found))


def weighted(text: str, sign: float = 1.0) -> Term:
    """``2:dog`` as on the command line, or just ``dog``."""
    found = WEIGHTED.fullmatch(text.strip())
    return Term(found["rest"], sign * float(found["weight"])) if found else Term(text, sign)


def respond(here: Service, results: Results) -> Response:
    """Hits as JSON, and the stages' times where browsers and benchmarks look for them."""
    here.metrics.searched(results.timings)
    times = {stage: round(1000 * seconds, 3) for stage, seconds in results.timings.items()}
    hits = [
        HitAnswer(id=hit.id, score=hit.score, rank=hit.rank, path=hit.path, text=getattr(hit, "text", None) or None)
        for hit in results.hits
    ]
    took = round(1000 * results.took, 3)
    answer = SearchAnswer(hits=hits, below=results.below, milliseconds=times, depth=results.depth, took=took)
    timing = ", ".join(f"{stage};dur={ms:.3f}" for stage, ms in times.items())
    return Response(answer.model_dump_json(), media_type="application/json", headers={"Server-Timing": timing})
