"""Routes of albums: list, changes, suggestions, downloads. ``/api/browse`` and ``/api/search`` show their pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from calligram.search.library.library import Library
from calligram.search.query.album_suggestions import AlbumSuggestions, suggest_pictures
from calligram.search.query.albums import (
    Album,
    album_items,
    change_album,
    delete_album,
    read_albums,
    rename_album,
)
from calligram.search.query.searcher import Searcher
from calligram.search.query.selection import MAX_NAME_CHARACTERS
from calligram.serve.guard import RefusedRequest, error_responses, sees_paths
from calligram.serve.item_lists import known_album
from calligram.serve.routes.library import download, refuse_unknown_parameters
from calligram.serve.schema import HitAnswer, Id
from calligram.serve.service import Service, service_of
from calligram.serve.settings import MAX_HITS

router = APIRouter(prefix="/api", tags=["albums"], dependencies=[Depends(refuse_unknown_parameters)])
CurrentService = Annotated[Service, Depends(service_of)]
AlbumName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARACTERS)]
NameParameter = Annotated[AlbumName, Query(description="Name of an album.")]
MAX_SUGGESTIONS = 100


class AlbumAnswer(BaseModel):
    """An album."""

    name: str
    pictures: int = Field(ge=0, description="Number of its pictures, including those no longer in the library.")
    rejected: int = Field(ge=0, description="Number of pictures that do not belong to it.")
    cover: str | None = Field(description="Id of its first picture.")


class AlbumsAnswer(BaseModel):
    """The albums of the library, in the order in which they were begun."""

    albums: list[AlbumAnswer]


class AlbumRequest(BaseModel):
    """A change of an album. All parts of it are made at once, or none."""

    model_config = ConfigDict(extra="forbid")

    name: AlbumName = Field(description="Of the album, which is begun if it does not exist.")
    add: list[Id] = Field(default=[], max_length=MAX_HITS, description="Ids of images that belong to it.")
    remove: list[Id] = Field(default=[], max_length=MAX_HITS, description="Ids of images to take out of it.")
    reject: list[Id] = Field(default=[], max_length=MAX_HITS, description="Ids of images that do not belong to it.")


class AlbumRenameRequest(BaseModel):
    """A new name for an album."""

    model_config = ConfigDict(extra="forbid")

    name: AlbumName
    new: AlbumName


class AlbumSuggestionsAnswer(BaseModel):
    """Images that may belong to an album, the most likely first."""

    hits: list[HitAnswer]
    learnt_from: Literal["name", "examples", "both", "nothing"] = Field(
        description="The name of the album as a text, its images and the rejected ones, or both. nothing: the album is "
        "empty, and the matcher does not know the words of its name."
    )
    examples: int = Field(ge=0, description="Images of the album that were used.")
    rejected: int = Field(ge=0, description="Rejected images that were used.")


@router.get("/albums", responses=error_responses(400, 422, 503))
async def albums(service: CurrentService) -> AlbumsAnswer:
    """List the albums."""
    return _albums(await service.read(lambda library: read_albums(library.folder)))


@router.post("/albums", responses=error_responses(400, 404, 408, 409, 413, 422, 503))
async def change(service: CurrentService, request: AlbumRequest) -> AlbumsAnswer:
    """Begin an album, add images to it, take images out, or note that images do not belong to it."""

    def write(library: Library) -> list[Album]:
        if request.remove or request.reject:
            known_album(library, request.name)
        library.items([*request.add, *request.reject])  # refuses unknown ids; others may be taken out
        change_album(library.folder, request.name, add=request.add, remove=request.remove, reject=request.reject)
        return read_albums(library.folder)

    return _albums(await service.write(write))


@router.post("/album-name", responses=error_responses(400, 404, 408, 409, 413, 422, 503))
async def rename(service: CurrentService, request: AlbumRenameRequest) -> AlbumsAnswer:
    """Give an album another name; 409 if that is the name of another album."""

    def write(library: Library) -> list[Album]:
        known_album(library, request.name)
        taken = {album.name for album in read_albums(library.folder)} - {request.name}
        if request.new in taken:
            raise RefusedRequest(409, f"there is an album '{request.new}' already; give another name")
        rename_album(library.folder, request.name, request.new)
        return read_albums(library.folder)

    return _albums(await service.write(write))


@router.delete("/albums", responses=error_responses(400, 404, 408, 409, 413, 422, 503))
async def delete(service: CurrentService, name: NameParameter) -> AlbumsAnswer:
    """Delete an album. Its images stay in the library."""

    def write(library: Library) -> list[Album]:
        known_album(library, name)
        delete_album(library.folder, name)
        return read_albums(library.folder)

    return _albums(await service.write(write))


@router.get("/album-suggestions", responses=error_responses(400, 404, 422, 503))
async def suggestions(
    service: CurrentService,
    http: Request,
    name: NameParameter,
    k: Annotated[int, Query(ge=1, le=MAX_SUGGESTIONS, description="Maximum number of images.")] = 24,
) -> AlbumSuggestionsAnswer:
    """Images that may belong to an album: learnt from its name, its images, and the images that do not belong to it."""
    shown = sees_paths(http)

    def work(searcher: Searcher) -> tuple[AlbumSuggestions, list[HitAnswer]]:
        album = known_album(searcher.library, name)
        found = suggest_pictures(searcher, album, k, service.library_sample)
        paths = searcher.library.paths([item.id for item in found.items])
        names = searcher.library.names(list(paths))
        hits = [
            HitAnswer(
                id=item.id, score=item.score, rank=rank, name=PurePath(names[item.id]).name,
                path=str(paths[item.id]) if shown and paths[item.id] is not None else None, text=None,
            )
            for rank, item in enumerate((item for item in found.items if item.id in paths), 1)
        ]  # fmt: skip
        return found, hits

    found, hits = await service.search(work)
    return AlbumSuggestionsAnswer(
        hits=hits, learnt_from=found.learnt_from, examples=found.examples, rejected=found.rejected
    )


@router.get(
    "/album-export",
    response_class=Response,
    responses={200: {"content": {"application/zip": {}}}, **error_responses(400, 404, 413, 422, 503)},
)
async def export(service: CurrentService, http: Request, name: NameParameter) -> Response:
    """Download the images of an album as a zip, with a table of their ids, captions and metadata."""
    found = await service.read(lambda library: album_items(library, known_album(library, name).pictures))
    if not found.items:
        raise RefusedRequest(404, f"the album '{name}' has no images that are in the library")
    return await download(service, http, found.selected, f"{name}.zip")


def _albums(found: Sequence[Album]) -> AlbumsAnswer:
    return AlbumsAnswer(
        albums=[
            AlbumAnswer(
                name=album.name,
                pictures=len(album.pictures),
                rejected=len(album.rejected),
                cover=next(iter(album.pictures), None),
            )
            for album in found
        ]
    )
