"""Routes about the whole library: its clusters and its duplicates."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from calligram.search.library.library import Library
from calligram.search.query.clusters import Cluster, LibraryClusters
from calligram.search.query.duplicates import Duplicates
from calligram.serve.guard import RefusedRequest, error_responses
from calligram.serve.schema import BrowseAnswer, HitAnswer
from calligram.serve.service import Service, service_of
from calligram.serve.settings import MAX_HITS

router = APIRouter(prefix="/api", tags=["library"])
CurrentService = Annotated[Service, Depends(service_of)]
WorkState = Annotated[
    Literal["working", "ready", "failed"],
    Field(description="working: ask again in a second; the first request starts the work."),
]
MAX_GROUPS = 200


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


@router.get("/clusters", responses=error_responses(503))
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
    key: Annotated[str, Query(max_length=64, description="key of /api/clusters.")],
    number: Annotated[int, Query(ge=1, le=MAX_HITS, description="Number of a cluster.")],
    k: Annotated[int, Query(ge=1, le=MAX_HITS, description="Maximum number of pictures.")] = 48,
) -> BrowseAnswer:
    """The pictures of a cluster, the nearest to its centre first; 409 if the clusters have changed."""
    now = service.clusters.answer(service.searcher)
    if now.state != "ready" or now.result.key != key:
        raise RefusedRequest(409, "the clusters have changed; ask for /api/clusters again")
    found: LibraryClusters = now.result
    if number > len(found.clusters):
        raise RefusedRequest(404, f"there is no cluster {number}; the numbers are 1 to {len(found.clusters)}")

    def read(library: Library) -> list[HitAnswer]:
        hits = found.members(library, number, k)
        paths = library.paths([hit.id for hit in hits])
        known = [hit for hit in hits if hit.id in paths]
        return [
            HitAnswer(id=hit.id, score=hit.score, rank=rank, path=_text(paths[hit.id]), text=None)
            for rank, hit in enumerate(known, 1)
        ]

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
    same_bytes: bool = Field(description="Whether its file has the same bytes as the largest picture.")


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
    groups = [
        CopiesAnswer(
            pictures=[
                CopyAnswer(
                    id=picture.id, name=picture.name, path=_text(picture.path), width=picture.width,
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
