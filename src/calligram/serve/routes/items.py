"""Routes of single images: files, metadata, and explanations of a match. A request gives an id, never a path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Annotated, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse, Response

from calligram.errors import UserError
from calligram.files import content_hash
from calligram.search.explain.library_localizer import LibraryLocalizer, LocatedPhrases
from calligram.search.explain.localize import LocatedPhrase
from calligram.search.explain.word_importance import WordImportances
from calligram.search.library.library import Item, Library
from calligram.search.library.video import media_type as video_type
from calligram.search.query.searcher import Searcher
from calligram.serve.guard import (
    RefusedRequest,
    browser_picture,
    error_responses,
    hidden_columns,
    media_type,
    sees_paths,
    sees_places,
    without_place,
)
from calligram.serve.schema import (
    AttentionAnswer,
    BoxAnswer,
    ExplainAnswer,
    Id,
    ItemAnswer,
    LocateAnswer,
    PhraseAnswer,
    TileAnswer,
    TilesAnswer,
    WordAnswer,
)
from calligram.serve.service import Service, service_of
from calligram.serve.settings import (
    MAX_BOXES_PER_PHRASE,
    MAX_EXPLAINED_WORDS,
    MAX_HITS,
    MAX_QUERY_CHARACTERS,
)
from calligram.text import whitespace_word_spans

T = TypeVar("T")
router = APIRouter(prefix="/api", tags=["items"], responses=error_responses(404, 422, 503))
CurrentService = Annotated[Service, Depends(service_of)]
ImageId = Annotated[Id, Query(description="Id of an image, as in the hits of a search.")]
PICTURE_SECURITY_POLICY = "default-src 'none'; sandbox"
"""for content that is not ours: opened as a page of its own, it can run nothing and load nothing"""


@router.get("/item")
async def item(service: CurrentService, request: Request, id: ImageId) -> ItemAnswer:
    """Captions and metadata of an image."""
    found = await service.read(_or_404(lambda library: library.item(id)))
    hidden, shown = hidden_columns(request, service.settings), sees_paths(request)
    metadata = {name: value for name, value in found.metadata.items() if name not in hidden}
    return ItemAnswer(
        id=found.id, name=found.name, folder=found.folder, width=found.width, height=found.height,
        path=str(found.path) if shown and found.path is not None else None,
        captions=list(found.captions), metadata=metadata, time=found.frame_time,
    )  # fmt: skip


@router.get("/tiles")
async def tiles(
    service: CurrentService, id: Annotated[list[Id], Query(min_length=1, max_length=MAX_HITS, description="Ids.")]
) -> TilesAnswer:
    """First captions and dates of images, and which of them are the same file. Unknown ids are skipped."""
    found = await service.read(lambda library: library.known_items(id))
    return TilesAnswer(
        tiles=[
            TileAnswer(
                id=item.id,
                caption=next(iter(item.captions), None),
                taken=str(item.metadata["taken"]) if item.metadata.get("taken") else None,
                content=item.hash,
            )
            for item in found
        ]
    )


@router.get("/thumbnail", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}, 304: {}})
async def thumbnail(service: CurrentService, request: Request, id: ImageId) -> Response:
    """A small JPEG of an image."""
    picture = await service.read(_or_404(lambda library: library.thumbnail(id)))
    return picture_answer(request, picture, "image/jpeg", {"Cache-Control": "private, max-age=600"})


@router.get("/image", response_class=Response, responses={200: {"content": {"image/*": {}}}, 304: {}})
async def image(
    service: CurrentService,
    request: Request,
    id: ImageId,
    download: Annotated[bool, Query(description="Let the browser save the file instead of showing it.")] = False,
) -> Response:
    """The file of an image; for clients on other machines without its metadata, which may tell places."""

    def read(library: Library) -> tuple[bytes, Item]:
        return library.picture(id), library.item(id)

    picture, found = await service.read(_or_404(read))
    if not sees_places(request, service.settings):
        picture = await service.read(lambda library: without_place(picture))
    if not download:
        picture = await service.read(lambda library: browser_picture(picture))
    kind = media_type(picture)
    # A browser must not guess the type of a file that it cannot show.
    disposition = "attachment" if download or not kind.startswith("image/") else "inline"
    name = quote(_file_name(found.name, kind), safe="")
    headers = {"Cache-Control": "private, no-cache", "Content-Disposition": f"{disposition}; filename*=UTF-8''{name}"}
    return picture_answer(request, picture, kind, headers)


@router.get("/video", response_class=Response, responses={200: {"content": {"video/*": {}}}, 206: {}, 416: {}})
async def video(service: CurrentService, request: Request, id: ImageId) -> Response:
    """The video that an image is a frame of, whole or in parts (header ``Range``)."""
    if not sees_places(request, service.settings):
        raise RefusedRequest(403, "videos may tell places, so other machines see frames only; see --show-places")
    found = await service.read(_or_404(lambda library: library.item(id)))
    if found.frame_time is None or found.path is None:
        raise RefusedRequest(404, f"the image '{id}' is not a frame of a video")
    if not found.path.is_file():
        raise RefusedRequest(404, f"the video of the image '{id}' is missing; index its folder again")
    headers = {"Cache-Control": "private, no-cache", "Content-Security-Policy": PICTURE_SECURITY_POLICY}
    return FileResponse(found.path, media_type=video_type(found.path), headers=headers)


def _file_name(name: str, kind: str) -> str:
    """The name of an item, with an extension if it has none: images of collections are named by their id."""
    add_extension = kind.startswith("image/") and not PurePath(name).suffix
    return f"{name}.{kind.removeprefix('image/').replace('jpeg', 'jpg')}" if add_extension else name


def picture_answer(request: Request, picture: bytes, kind: str, headers: dict[str, str]) -> Response:
    """A picture with an ETag, and with a policy that lets its content run nothing."""
    tag = f'"{content_hash(picture, 12)}"'
    headers = {**headers, "ETag": tag, "Content-Security-Policy": PICTURE_SECURITY_POLICY}
    if tag in (cached.strip() for cached in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    return Response(picture, media_type=kind, headers=headers)


def _or_404(read: Callable[[Library], T]) -> Callable[[Library], T]:
    """Answer 404 if the library has no such item, or if its file is missing."""

    def read_or_refuse(library: Library) -> T:
        try:
            return read(library)
        except UserError as error:
            raise RefusedRequest(404, str(error)) from None

    return read_or_refuse


# Explanations of a match: the importance of words, their attention, and the boxes of phrases.


@router.get("/explain", responses=error_responses(400, 404, 422, 503))
async def explain(
    service: CurrentService,
    id: ImageId,
    text: Annotated[
        str, Query(max_length=MAX_QUERY_CHARACTERS, description=f"A sentence of 2 to {MAX_EXPLAINED_WORDS} words.")
    ],
) -> ExplainAnswer:
    """Measure how much each word raises the score of an image, and return the attention of the words."""
    count = len(whitespace_word_spans(text))
    if not 2 <= count <= MAX_EXPLAINED_WORDS:
        raise RefusedRequest(
            400,
            f"the text has {count} words; give 2 to {MAX_EXPLAINED_WORDS}, because words are explained by leaving out "
            "one at a time",
        )

    def work(searcher: Searcher) -> WordImportances:
        try:
            return searcher.explain(id, text)
        except UserError as error:  # the text is valid, so there is no such item
            raise RefusedRequest(404, str(error)) from None

    found = await service.search(work)
    attention = None if found.attention is None else AttentionAnswer(**found.attention.as_json())
    words = [WordAnswer(**word._asdict()) for word in found.words]
    return ExplainAnswer(score=found.score, words=words, attention=attention)


@router.get("/locate", response_model=LocateAnswer, responses=error_responses(400, 404, 409, 422, 503))
async def locate(
    service: CurrentService,
    id: ImageId,
    text: Annotated[str, Query(max_length=MAX_QUERY_CHARACTERS, description="A phrase or a sentence.")],
    k: Annotated[int, Query(ge=1, le=MAX_BOXES_PER_PHRASE, description="Maximum number of boxes per phrase.")] = 3,
) -> Response:
    """Find the boxes of the noun phrases of a text in an image; 409 if the library has no localizer."""
    if not text.strip():
        raise RefusedRequest(400, "the text is empty; give a phrase or a sentence, such as 'a dog on the beach'")

    def work(localizer: LibraryLocalizer, library: Library) -> LocatedPhrases:
        try:
            return localizer.locate(library, id, text, k)
        except UserError as error:  # the text is valid, so the item or its picture is missing
            raise RefusedRequest(404, str(error)) from None

    found = await service.localize(work)
    times = {stage: round(1000 * seconds, 3) for stage, seconds in found.stage_seconds.items()}
    answer = LocateAnswer(
        width=found.width, height=found.height, phrases=[_phrase(located) for located in found.phrases],
        unknown=list(found.unknown_words), proposals=found.proposals, milliseconds=times,
    )  # fmt: skip
    timing = ", ".join(f"{stage};dur={ms:.3f}" for stage, ms in times.items())
    return Response(answer.model_dump_json(), media_type="application/json", headers={"Server-Timing": timing})


def _phrase(located: LocatedPhrase) -> PhraseAnswer:
    boxes = [BoxAnswer(box=hit.box, score=hit.score, rank=hit.rank) for hit in located.hits]
    return PhraseAnswer(start=located.span.start, end=located.span.end, text=located.text, boxes=boxes)
