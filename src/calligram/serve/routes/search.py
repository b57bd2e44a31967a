"""Routes that search and browse."""

from __future__ import annotations

from datetime import date
from pathlib import PurePath
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import Response
from PIL import Image

from calligram.errors import UserError
from calligram.search.library.library import Library
from calligram.search.query.encoded_query import ImageSearch
from calligram.search.query.query import ItemId, QueryTerm, weighted_text
from calligram.search.query.query import Query as SearchQuery
from calligram.search.query.rerank import RERANK_DEPTH, TimeBudget
from calligram.search.query.searcher import Results, Searcher
from calligram.search.query.selection import MAX_NAME_CHARACTERS
from calligram.serve.guard import RefusedRequest, error_responses, read_upload, refuse_hidden_columns, sees_paths
from calligram.serve.item_lists import Order, album_page, known_album
from calligram.serve.schema import (
    BrowseAnswer,
    CompletionsAnswer,
    HitAnswer,
    ImageSearchRequest,
    SearchAnswer,
    SearchRequest,
)
from calligram.serve.service import SAMPLE_ITEMS, Service, service_of
from calligram.serve.settings import MAX_CONDITION_CHARACTERS, MAX_HITS, MAX_QUERY_CHARACTERS

router = APIRouter(prefix="/api", tags=["search"])
CurrentService = Annotated[Service, Depends(service_of)]
MAX_START = 10_000_000
"""pictures that a page of a list may skip"""


@router.get("/search", response_model=SearchAnswer, responses=error_responses(400, 404, 422, 503))
async def search(service: CurrentService, http: Request, request: Annotated[SearchRequest, Query()]) -> Response:
    """Find images or captions by texts, by items, or by both."""
    refuse_hidden_columns(http, service.settings, request.where)

    async def answer() -> Results:
        if request.find == "images":
            return await service.search_images(image_search(request, None, budget_ms, within))
        return await service.search(lambda searcher: run_search(searcher, request, None, budget_ms))

    budget_ms, within = service.settings.budget_ms, await _album(service, request)
    # Results that depend on the load of the machine, or on an album, which may change at any time, are not remembered.
    if request.album or isinstance(rerank_depth(request, budget_ms), TimeBudget):
        return await respond(service, await answer(), http)
    key = f"{date.today()} {request.model_dump_json()}"  # a condition may say "yesterday"
    return await respond(service, await service.remembered(key, answer), http)


@router.post("/search", response_model=SearchAnswer, responses=error_responses(400, 404, 408, 413, 415, 422, 503))
async def search_by_image(
    service: CurrentService,
    http: Request,
    request: Annotated[ImageSearchRequest, Form(media_type="multipart/form-data")],
) -> Response:
    """Find images or captions by an uploaded picture, alone or with texts."""
    refuse_hidden_columns(http, service.settings, request.where)
    content, within = await request.image.read(), await _album(service, request)

    def work(searcher: Searcher) -> Results:
        picture = read_upload(content, service.settings)
        return run_search(searcher, request, picture, service.settings.budget_ms, within)

    return await respond(service, await service.search(work), http)


@router.get("/browse", responses=error_responses(400, 404, 422, 503))
async def browse(
    service: CurrentService,
    http: Request,
    k: Annotated[int, Query(ge=1, le=MAX_HITS, description="Maximum number of images.")] = SAMPLE_ITEMS,
    where: Annotated[
        str,
        Query(max_length=MAX_CONDITION_CHARACTERS, description="A condition on the metadata, such as year >= 2020."),
    ] = "",
    start: Annotated[int, Query(ge=0, le=MAX_START, description="Number of images to skip.")] = 0,
    order: Annotated[Order, Query(description="mixed: always the same; newest, oldest: by date.")] = "mixed",
    album: Annotated[str, Query(max_length=MAX_NAME_CHARACTERS, description="List the pictures of this album.")] = "",
) -> BrowseAnswer:
    """Images without a query: all of the library, of an album, or images that satisfy a condition, in pages."""
    refuse_hidden_columns(http, service.settings, where)
    shown = sees_paths(http)

    def read(library: Library) -> BrowseAnswer:
        if album:
            listed = album_page(library, known_album(library, album), where, order, start, k)
        else:
            listed = service.listings.page(library, where, order, start, k)
        hits = [
            HitAnswer(
                id=item.id, score=0.0, rank=rank, path=_path(item.path) if shown else None, name=item.name, text=None
            )
            for rank, item in enumerate(library.items(listed.ids), start + 1)
        ]
        return BrowseAnswer(hits=hits, total=listed.total, missing=listed.missing)

    return await service.read(read)


@router.get("/complete", responses=error_responses(422, 503))
async def complete(
    service: CurrentService,
    q: Annotated[str, Query(max_length=MAX_QUERY_CHARACTERS, description="What is typed.")],
    k: Annotated[int, Query(ge=1, le=20, description="Maximum number of texts.")] = 8,
) -> CompletionsAnswer:
    """Complete a query: its last word by words of captions, and the whole by captions."""
    return CompletionsAnswer(texts=await service.complete(q, k))


async def _album(service: Service, request: SearchRequest) -> tuple[str, ...] | None:
    """The ids of the album that a request names; None if it names none.

    Raises:
        RefusedRequest: for an unknown album, and for a search for captions.
    """
    if not request.album:
        return None
    if request.find == "captions":
        raise RefusedRequest(400, "an album has pictures and no captions; leave out album, or find=captions")
    return await service.read(lambda library: known_album(library, request.album).pictures)


def _path(path: object) -> str | None:
    return None if path is None else str(path)


def run_search(
    searcher: Searcher,
    request: SearchRequest,
    picture: Image.Image | None,
    budget_ms: float | None = None,
    within: tuple[str, ...] | None = None,
) -> Results:
    """Search by a request and an uploaded picture.

    Args:
        budget_ms: time limit in milliseconds if the request gives neither depth nor budget.
        within: ids of the only pictures that may be hits.
    """
    search = image_search(request, picture, budget_ms, within)
    if request.find == "images":
        found = searcher.image_batch([search])[0]
        if isinstance(found, UserError):
            raise found
        return found
    return searcher.texts(
        search.query,
        search.k,
        where=search.where,
        all=search.all,
        hybrid=search.hybrid,
        depth=search.depth,
        exact=search.exact,
    )


def image_search(
    request: SearchRequest,
    picture: Image.Image | None,
    budget_ms: float | None,
    within: tuple[str, ...] | None = None,
) -> ImageSearch:
    """The arguments of a search."""
    where, depth = request.where.strip() or None, rerank_depth(request, budget_ms)
    query = search_query(request, picture)
    # No cut-off says how different a picture must be from what is left out.
    everything = request.all or all(term.weight < 0 for term in query.terms)
    return ImageSearch(query, request.k, where, everything, request.hybrid, depth, request.exact, within)


def rerank_depth(request: SearchRequest, budget_ms: float | None) -> int | TimeBudget:
    """The number of candidates that are reranked, or the time for it."""
    if request.depth is not None and request.budget_ms is not None:
        raise RefusedRequest(
            400, "depth and budget_ms are both given; give depth for a number of candidates, or budget_ms, not both"
        )
    if request.depth is not None:
        return request.depth
    chosen = request.budget_ms or budget_ms
    return RERANK_DEPTH if chosen is None else TimeBudget.of_milliseconds(chosen)


def search_query(request: SearchRequest, picture: Image.Image | None) -> SearchQuery:
    """The weighted terms of a request. Its texts are never read as paths, so a request cannot open files."""
    terms = [QueryTerm(request.q)] if request.q.strip() else []
    terms += [] if picture is None else [QueryTerm(picture)]
    terms += [QueryTerm(ItemId(id)) for id in request.like]
    terms += [weighted_text(text) for text in request.plus]
    terms += [QueryTerm(ItemId(id), -1.0) for id in request.unlike]
    terms += [weighted_text(text, -1.0) for text in request.minus]
    if not terms:
        raise RefusedRequest(400, "the query is empty; give q, plus, like, minus or a picture to search for")
    return SearchQuery(tuple(terms))


async def respond(service: Service, results: Results, http: Request) -> Response:
    """Hits as JSON, with the times of the stages in the header ``Server-Timing``."""
    service.metrics.count_search(results.stage_seconds)
    times = {stage: round(1000 * seconds, 3) for stage, seconds in results.stage_seconds.items()}
    shown = sees_paths(http)
    in_shards = [hit.id for hit in results.hits if not hit.text and hit.path is None]
    names = await service.read(lambda library: library.names(in_shards)) if in_shards else {}
    hits = [
        HitAnswer(
            id=hit.id, score=hit.score, rank=hit.rank, path=hit.path if shown else None,
            name=None if hit.text else PurePath(hit.path or names.get(hit.id, hit.id)).name, text=hit.text or None,
        )
        for hit in results.hits
    ]  # fmt: skip
    took = round(1000 * results.seconds, 3)
    answer = SearchAnswer(
        hits=hits,
        below=results.below_cutoff,
        milliseconds=times,
        depth=results.depth,
        took=took,
        recall=results.recall,
        unknown=list(results.unknown_words),
    )
    timing = ", ".join(f"{stage};dur={ms:.3f}" for stage, ms in times.items())
    return Response(answer.model_dump_json(), media_type="application/json", headers={"Server-Timing": timing})
