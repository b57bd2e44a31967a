"""Routes that propose images to caption, and take the captions. They need ``calligram serve --collection``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from calligram.serve.caption_desk import CaptionDesk, SuggestionRound
from calligram.serve.guard import RefusedRequest, documented
from calligram.serve.routes.items import picture_answer
from calligram.serve.schema import CaptionAnswer, CaptionRequest, Id, SuggestedAnswer, SuggestionsAnswer
from calligram.serve.service import Service, service_of
from calligram.serve.workers import LateError

router = APIRouter(prefix="/api", tags=["captions"])
Here = Annotated[Service, Depends(service_of)]


@router.get("/suggestions", responses=documented(409, 503))
async def suggestions(here: Here) -> SuggestionsAnswer:
    """Images that a caption would teach most; ask again while ``state`` is ``working``."""
    library = here.searcher.library
    return _answer(await here.caption(lambda desk: desk.proposed(library)))


@router.post("/suggestions", responses=documented(409, 503))
async def suggest_anew(here: Here) -> SuggestionsAnswer:
    """Propose others, now that some are captioned."""
    library = here.searcher.library
    return _answer(await here.caption(lambda desk: desk.begin(library)))


@router.get(
    "/suggested-image",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}}, 304: {}, **documented(404, 409, 422, 503)},
)
async def suggested_image(
    here: Here, request: Request, id: Annotated[Id, Query(description="Of an image, as suggestions give it.")]
) -> Response:
    """An image of the collection, small, as JPEG."""
    picture = await here.caption(lambda desk: desk.picture(id), writes=False)
    return picture_answer(request, picture, "image/jpeg", {"Cache-Control": "private, max-age=600"})


@router.post("/captions", responses=documented(400, 404, 408, 409, 413, 422, 503))
async def captions(here: Here, new: CaptionRequest) -> CaptionAnswer:
    """Write a caption into the collection; the same one a second time changes nothing."""

    def write(desk: CaptionDesk) -> bool:
        return desk.write(new.id, new.text)

    try:
        return CaptionAnswer(added=await here.caption(write))
    except LateError:
        raise RefusedRequest(
            503, "another program holds the collection; send the caption again, it is written once"
        ) from None


def _answer(found: SuggestionRound) -> SuggestionsAnswer:
    return SuggestionsAnswer(
        state=found.state,
        said=found.said,
        captioned=found.captioned,
        left=found.left,
        suggestions=[SuggestedAnswer(id=s.image, why=s.why) for s in found.chosen],
    )
