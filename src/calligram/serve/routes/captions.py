"""Routes that suggest images to caption and store captions. They need ``calligram serve --collection``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from calligram.serve.caption_service import CaptionService, SuggestionRound
from calligram.serve.guard import RefusedRequest, WorkTimeoutError, error_responses
from calligram.serve.routes.items import picture_answer
from calligram.serve.schema import CaptionAnswer, CaptionRequest, Id, SuggestedAnswer, SuggestionsAnswer
from calligram.serve.service import Service, service_of

router = APIRouter(prefix="/api", tags=["captions"])
CurrentService = Annotated[Service, Depends(service_of)]


@router.get("/suggestions", responses=error_responses(409, 503))
async def suggestions(service: CurrentService) -> SuggestionsAnswer:
    """Images whose captions would help training most. Ask again while ``state`` is ``working``."""
    library = service.searcher.library
    return _answer(await service.caption(lambda captions: captions.suggestions(library)))


@router.post("/suggestions", responses=error_responses(409, 503))
async def suggest_again(service: CurrentService) -> SuggestionsAnswer:
    """Choose other images, with the captions that were added since."""
    library = service.searcher.library
    return _answer(await service.caption(lambda captions: captions.start_round(library)))


@router.get(
    "/suggested-image",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}}, 304: {}, **error_responses(404, 409, 422, 503)},
)
async def suggested_image(
    service: CurrentService,
    request: Request,
    id: Annotated[Id, Query(description="Id of an image, as in the suggestions.")],
) -> Response:
    """A small JPEG of an image of the collection."""
    picture = await service.caption(lambda captions: captions.thumbnail(id), writes=False)
    return picture_answer(request, picture, "image/jpeg", {"Cache-Control": "private, max-age=600"})


@router.post("/captions", responses=error_responses(400, 404, 408, 409, 413, 422, 503))
async def add_caption(service: CurrentService, new: CaptionRequest) -> CaptionAnswer:
    """Add a caption to the collection. Adding the same caption twice changes nothing."""

    def write(captions: CaptionService) -> bool:
        return captions.write(new.id, new.text)

    try:
        return CaptionAnswer(added=await service.caption(write))
    except WorkTimeoutError:
        raise RefusedRequest(
            503, "another program has locked the collection; send the caption again, it is stored once"
        ) from None


def _answer(found: SuggestionRound) -> SuggestionsAnswer:
    return SuggestionsAnswer(
        state=found.state,
        said=found.message,
        captioned=found.captioned,
        left=found.left,
        suggestions=[SuggestedAnswer(id=s.image, why=s.why) for s in found.chosen],
    )
