"""Routes about single pictures. Ids are looked up; no path ever comes from a request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Annotated, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from calligram.errors import UserError
from calligram.files import content_hash
from calligram.search.library.library import Item, Library
from calligram.serve.guard import RefusedRequest, content_type, documented
from calligram.serve.schema import Id, ItemAnswer
from calligram.serve.service import Service, service_of

T = TypeVar("T")
router = APIRouter(prefix="/api", tags=["items"], responses=documented(404, 422, 503))
Here = Annotated[Service, Depends(service_of)]
ItemId = Annotated[Id, Query(description="As search gives it.")]
SANDBOX = "default-src 'none'; sandbox"
"""for bytes that are not ours: opened on their own, they may do nothing at all"""


@router.get("/item")
async def item(here: Here, id: ItemId) -> ItemAnswer:
    """What is known of a picture."""
    return _answer(await here.read(_or_404(lambda library: library.item(id))))


@router.get("/thumbnail", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}, 304: {}})
async def thumbnail(here: Here, request: Request, id: ItemId) -> Response:
    """The picture, small, as JPEG."""
    picture = await here.read(_or_404(lambda library: library.thumbnail(id)))
    return picture_answer(request, picture, "image/jpeg", {"Cache-Control": "private, max-age=600"})


@router.get("/image", response_class=Response, responses={200: {"content": {"image/*": {}}}, 304: {}})
async def image(
    here: Here,
    request: Request,
    id: ItemId,
    download: Annotated[bool, Query(description="Ask the browser to save it.")] = False,
) -> Response:
    """The picture as it was indexed, byte for byte."""

    def look(library: Library) -> tuple[bytes, Item]:
        return library.picture(id), library.item(id)

    picture, found = await here.read(_or_404(look))
    kind = content_type(picture)
    # A browser would only guess at what it cannot show.
    manner = "attachment" if download or not kind.startswith("image/") else "inline"
    disposition = f"{manner}; filename*=UTF-8''{quote(_file_name(found.name, kind), safe='')}"
    headers = {"Cache-Control": "private, no-cache", "Content-Disposition": disposition}
    return picture_answer(request, picture, kind, headers)


def _file_name(name: str, kind: str) -> str:
    """The item's name, with an ending where it has none: pictures of collections go by their id."""
    known = kind.startswith("image/") and not PurePath(name).suffix
    return f"{name}.{kind.removeprefix('image/').replace('jpeg', 'jpg')}" if known else name


def picture_answer(request: Request, picture: bytes, kind: str, headers: dict[str, str]) -> Response:
    """A picture that browsers may keep, and that may do nothing if it is none."""
    tag = f'"{content_hash(picture, 12)}"'
    headers = {**headers, "ETag": tag, "Content-Security-Policy": SANDBOX}
    if tag in (known.strip() for known in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    return Response(picture, media_type=kind, headers=headers)


def _answer(found: Item) -> ItemAnswer:
    return ItemAnswer(
        id=found.id, name=found.name, folder=found.folder, path=None if found.path is None else str(found.path),
        width=found.width, height=found.height, captions=list(found.captions), metadata=dict(found.metadata),
    )  # fmt: skip


def _or_404(look: Callable[[Library], T]) -> Callable[[Library], T]:
    """What the library says of an id that it does not have, or of a picture that is gone, is a 404."""

    def looking(library: Library) -> T:
        try:
            return look(library)
        except UserError as error:
            raise RefusedRequest(404, str(error)) from None

    return looking
