"""Routes about the whole library: its clusters, its duplicates, saved searches, and downloads of a selection."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict
from pathlib import PurePath
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.types import Receive, Scope, Send

from calligram.search.filters.parser import named_columns, parse
from calligram.search.library.library import Library
from calligram.search.query.clusters import Cluster, LibraryClusters
from calligram.search.query.duplicates import Duplicates
from calligram.search.query.selection import (
    MAX_NAME_CHARACTERS,
    SavedSearch,
    SelectedPicture,
    delete_search,
    save_search,
    saved_searches,
    zip_parts,
)
from calligram.serve.guard import (
    QueueFullError,
    RefusedRequest,
    error_responses,
    hidden_columns,
    refuse_hidden_columns,
    sees_paths,
    sees_places,
    without_place,
)
from calligram.serve.schema import BrowseAnswer, HitAnswer, Id, QueryText
from calligram.serve.service import Service, service_of
from calligram.serve.settings import (
    MAX_CONDITION_CHARACTERS,
    MAX_EXPORT_BYTES,
    MAX_HITS,
    MAX_QUERY_TERMS,
    PATH_COLUMNS,
    PLACE_COLUMNS,
)
from calligram.text import printable


def refuse_unknown_parameters(request: Request) -> None:
    """Refuse a parameter that a route does not have: a misspelt one would have no effect, and nobody would notice.

    Raises:
        RefusedRequest: for the first unknown parameter.
    """
    fields = request.scope["route"].dependant.query_params
    known = [field.alias for field in fields]
    if any(isinstance(field.field_info.annotation, type(BaseModel)) for field in fields):
        return  # the model refuses unknown names itself
    for name in request.query_params:
        if name not in known:
            listed = f"it has {', '.join(known)}" if known else "it has none"
            raise RefusedRequest(422, f"{printable(name)[:50]}: the route has no such parameter; {listed}")


router = APIRouter(prefix="/api", tags=["library"], dependencies=[Depends(refuse_unknown_parameters)])
CurrentService = Annotated[Service, Depends(service_of)]
WorkState = Annotated[
    Literal["working", "ready", "failed"],
    Field(description="working: ask again in a second; the first request starts the work."),
]
MAX_GROUPS = 200
HIDDEN_COLUMNS = (*PLACE_COLUMNS, *PATH_COLUMNS, "path")
"""of the table in a download: where pictures were taken, and where they are on the server"""


# Clusters.


class MapPicture(BaseModel):
    """A picture on the map."""

    id: str
    x: float
    y: float


class ClusterAnswer(BaseModel):
    """A cluster: a circle on the map, which reaches from 0 to 1 in its width."""

    number: int = Field(ge=1)
    name: str
    words: list[str]
    named_by: str = Field(description="captions, matcher or number.")
    size: int = Field(description="Number of pictures; an estimate if only a sample was clustered.")
    x: float
    y: float
    radius: float
    examples: list[str] = Field(description="Ids of the pictures nearest to the centre.")
    pictures: list[MapPicture]


class ClustersAnswer(BaseModel):
    """The clusters of the library, the largest first."""

    state: WorkState
    said: str = Field(default="", description="The present step while working, or the error.")
    key: str = Field(default="", description="Names this clustering in requests for pictures of a cluster.")
    items: int = 0
    sampled: int = Field(default=0, description="Pictures that were clustered.")
    height: float = Field(default=1.0, description="Of the map; its width is 1.")
    clusters: list[ClusterAnswer] = []


@router.get("/clusters", responses=error_responses(422, 503))
async def clusters(service: CurrentService) -> ClustersAnswer:
    """Group the pictures of the library, and name the groups. The work is done in the background."""
    now = service.clusters.answer(service.searcher)
    if now.state != "ready":
        return ClustersAnswer(state=now.state, said=now.message)
    found: LibraryClusters = now.result
    return ClustersAnswer(
        state="ready", key=found.key, items=found.items, sampled=found.sampled, height=found.height,
        clusters=[_cluster(cluster) for cluster in found.clusters],
    )  # fmt: skip


def _cluster(cluster: Cluster) -> ClusterAnswer:
    return ClusterAnswer(
        number=cluster.number, name=cluster.name, words=list(cluster.words), named_by=cluster.named_by,
        size=cluster.size, x=cluster.place.x, y=cluster.place.y, radius=cluster.radius, examples=list(cluster.examples),
        pictures=[MapPicture(id=id, x=place.x, y=place.y) for id, place in cluster.pictures],
    )  # fmt: skip


@router.get("/cluster", responses=error_responses(404, 409, 422, 503))
async def cluster(
    service: CurrentService,
    http: Request,
    key: Annotated[str, Query(max_length=64, description="key of /api/clusters.")],
    number: Annotated[int, Query(ge=1, le=MAX_HITS, description="Number of a cluster.")],
    k: Annotated[int, Query(ge=1, le=MAX_HITS, description="Maximum number of pictures.")] = 48,
) -> BrowseAnswer:
    """The pictures of a cluster, the nearest to its centre first; 409 if the clusters have changed."""
    now = service.clusters.answer(service.searcher)
    if now.state != "ready" or now.result.key != key:
        raise RefusedRequest(409, "the clusters have changed; ask for /api/clusters again")
    found: LibraryClusters = now.result
    shown = sees_paths(http)
    if number > len(found.clusters):
        raise RefusedRequest(404, f"there is no cluster {number}; the numbers are 1 to {len(found.clusters)}")

    def read(library: Library) -> list[HitAnswer]:
        hits = found.members(library, number, k)
        paths = library.paths([hit.id for hit in hits])
        names = library.names([id for id, path in paths.items() if path is None])
        known = [hit for hit in hits if hit.id in paths]
        return [
            HitAnswer(
                id=hit.id, score=hit.score, rank=rank, path=_text(paths[hit.id]) if shown else None,
                name=PurePath(paths[hit.id] or names[hit.id]).name, text=None,
            )
            for rank, hit in enumerate(known, 1)
        ]  # fmt: skip

    return BrowseAnswer(hits=await service.read(read))


def _text(path: object) -> str | None:
    return None if path is None else str(path)


# Duplicates.


class CopyAnswer(BaseModel):
    """A picture of a group of copies."""

    id: str
    name: str
    path: str | None
    width: int
    height: int
    bytes: int
    same_bytes: bool = Field(description="Whether its file has the same bytes as the largest; of that, as a copy.")


class CopiesAnswer(BaseModel):
    """Copies of one picture, the largest first."""

    pictures: list[CopyAnswer]
    copied_bytes: int = Field(description="Bytes of all files but the largest.")


class DuplicatesAnswer(BaseModel):
    """Groups of copies; those whose copies take most space first."""

    state: WorkState
    said: str = Field(default="", description="The present step while working, or the error.")
    total: int = Field(default=0, description="Number of all groups.")
    copied_bytes: int = Field(default=0, description="Bytes of all copies.")
    threshold: float | None = Field(default=None, description="Cosine from which two pictures were compared.")
    groups: list[CopiesAnswer] = []


@router.get("/duplicates", responses=error_responses(422, 503))
async def duplicates(
    service: CurrentService,
    http: Request,
    start: Annotated[int, Query(ge=0, description="Number of groups to skip.")] = 0,
    k: Annotated[int, Query(ge=1, le=MAX_GROUPS, description="Maximum number of groups.")] = 50,
) -> DuplicatesAnswer:
    """Find files with the same bytes, and copies in another size, compression or crop. Nothing is deleted.

    The work is done in the background.
    """
    now = service.duplicates.answer(service.searcher)
    if now.state != "ready":
        return DuplicatesAnswer(state=now.state, said=now.message)
    found: Duplicates = now.result
    shown = sees_paths(http)
    groups = [
        CopiesAnswer(
            pictures=[
                CopyAnswer(
                    id=picture.id, name=picture.name, path=_text(picture.path) if shown else None, width=picture.width,
                    height=picture.height, bytes=picture.bytes, same_bytes=same,
                )
                for picture, same in zip(group.pictures, group.same_bytes, strict=True)
            ],
            copied_bytes=group.copied_bytes,
        )
        for group in found.groups[start : start + k]
    ]  # fmt: skip
    total = sum(group.copied_bytes for group in found.groups)
    return DuplicatesAnswer(
        state="ready", total=len(found.groups), copied_bytes=total, threshold=found.threshold, groups=groups
    )


# Dates.


class TimelineAnswer(BaseModel):
    """How many pictures were taken on each day."""

    days: dict[str, int] = Field(description="Number of pictures by day, as 2019-07-02, in order.")
    undated: int = Field(description="Number of pictures without a date.")


@router.get("/timeline", responses=error_responses(422, 503))
async def timeline(service: CurrentService) -> TimelineAnswer:
    """Count the pictures of each day."""
    overview = await service.read(service.overview)
    return TimelineAnswer(days=dict(overview.days), undated=overview.undated)


# Saved searches.


class SavedSearchRequest(BaseModel):
    """A search to save: texts, items and a condition."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARACTERS)]
    q: QueryText = ""
    plus: list[QueryText] = Field(default=[], max_length=MAX_QUERY_TERMS)
    minus: list[QueryText] = Field(default=[], max_length=MAX_QUERY_TERMS)
    like: list[Id] = Field(default=[], max_length=MAX_QUERY_TERMS)
    where: Annotated[str, StringConstraints(max_length=MAX_CONDITION_CHARACTERS)] = ""
    all: bool = False


class SavedSearchesAnswer(BaseModel):
    """The saved searches of the library, in the order in which they were saved."""

    searches: list[SavedSearchRequest]


@router.get("/searches", responses=error_responses(400, 422, 503))
async def searches(service: CurrentService, http: Request) -> SavedSearchesAnswer:
    """List the saved searches; other machines do not see those with a condition on what is hidden from them."""
    found = await service.read(lambda library: saved_searches(library.folder))
    return _searches(found, hidden_columns(http, service.settings))


@router.post("/searches", responses=error_responses(400, 408, 409, 413, 422, 503))
async def save(service: CurrentService, http: Request, request: SavedSearchRequest) -> SavedSearchesAnswer:
    """Save a search, in place of an earlier one of the same name."""
    refuse_hidden_columns(http, service.settings, request.where)
    search = SavedSearch.of(request.model_dump())

    def write(library: Library) -> list[SavedSearch]:
        if search.has_query:
            search.query()  # refuses empty terms
        library.items(search.like)  # refuses unknown ids
        if search.where.strip():
            parse(search.where, library.kinds)
        save_search(library.folder, search)
        return saved_searches(library.folder)

    return _searches(await service.write(write), hidden_columns(http, service.settings))


@router.delete("/searches", responses=error_responses(400, 404, 408, 409, 413, 422, 503))
async def delete(
    service: CurrentService,
    http: Request,
    name: Annotated[str, Query(min_length=1, max_length=MAX_NAME_CHARACTERS)],
) -> SavedSearchesAnswer:
    """Delete a saved search."""

    def write(library: Library) -> list[SavedSearch]:
        if all(search.name != name for search in saved_searches(library.folder)):
            raise RefusedRequest(404, f"there is no saved search '{name}'")
        delete_search(library.folder, name)
        return saved_searches(library.folder)

    return _searches(await service.write(write), hidden_columns(http, service.settings))


def _searches(found: Sequence[SavedSearch], hidden: Set[str]) -> SavedSearchesAnswer:
    """The saved searches without those whose condition has a hidden column."""
    shown = [search for search in found if not named_columns(search.where) & hidden]
    return SavedSearchesAnswer(searches=[SavedSearchRequest(**asdict(search)) for search in shown])


# Downloads.


class ExportRequest(BaseModel):
    """Pictures to download."""

    model_config = ConfigDict(extra="forbid")

    id: list[Id] = Field(min_length=1, max_length=MAX_HITS, description="Ids of images; may be repeated.")
    score: list[float] = Field(
        default=[], max_length=MAX_HITS, description="A score for each image, for the table; none, or one for each id."
    )


@router.get(
    "/export",
    response_class=Response,
    responses={200: {"content": {"application/zip": {}}}, **error_responses(400, 404, 413, 422, 503)},
)
async def export(service: CurrentService, http: Request, request: Annotated[ExportRequest, Query()]) -> Response:
    """Download pictures as a zip, with a table of their ids, scores, captions and metadata."""
    ids = list(dict.fromkeys(request.id))
    if request.score and len(request.score) != len(request.id):
        raise RefusedRequest(400, f"{len(request.id)} ids with {len(request.score)} scores; give one for each, or none")
    scores = dict(zip(request.id, request.score, strict=True)) if request.score else {}
    chosen = [SelectedPicture(id, rank, scores.get(id)) for rank, id in enumerate(ids, 1)]
    return await download(service, http, chosen, "pictures.zip")


async def download(service: Service, http: Request, chosen: Sequence[SelectedPicture], file: str) -> Response:
    """A zip of pictures, as an answer.

    Raises:
        RefusedRequest: if the library has none of them, or they are too large.
    """
    library = service.searcher.library
    items = await service.read(lambda library: library.known_items([picture.id for picture in chosen]))
    if not items:
        raise RefusedRequest(404, "the library has none of these images; search again if it has changed")
    if sum(int(item.metadata.get("bytes") or 0) for item in items) > MAX_EXPORT_BYTES:
        raise RefusedRequest(413, f"the pictures have more than {MAX_EXPORT_BYTES / 1e9:g} GB; choose fewer")
    if not service.exports.acquire(blocking=False):
        raise QueueFullError
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file, safe='')}",
        "Cache-Control": "no-store",
    }
    cleaned = None if sees_places(http, service.settings) else without_place
    return Download(service, zip_parts(library, chosen, HIDDEN_COLUMNS, cleaned), headers)


class Download(StreamingResponse):
    """A zip, which counts as a download until it is sent or its client goes away."""

    def __init__(self, service: Service, parts: Iterator[bytes], headers: dict[str, str]) -> None:
        super().__init__(parts, media_type="application/zip", headers=headers)
        self._done = weakref.finalize(self, service.exports.release)  # also if nothing is ever sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()
