"""The route that finds phrases within a picture."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from calligram.errors import UserError
from calligram.search.library import Library
from calligram.search.localizer import Located
from calligram.search.locator import Answer, Locator
from calligram.serve.problems import Refused, documented
from calligram.serve.schema import BoxAnswer, Id, LocateAnswer, PhraseAnswer
from calligram.serve.service import Service, service
from calligram.serve.settings import MAX_BOXES, MAX_QUERY

router = APIRouter(prefix="/api", tags=["items"])
Here = Annotated[Service, Depends(service)]


@router.get("/locate", response_model=LocateAnswer, responses=documented(400, 404, 409, 422, 503))
async def locate(
    here: Here,
    id: Annotated[Id, Query(description="Of a picture, as search gives it.")],
    text: Annotated[str, Query(max_length=MAX_QUERY, description="A phrase or a sentence.")],
    k: Annotated[int, Query(ge=1, le=MAX_BOXES, description="Boxes of each phrase at most.")] = 3,
) -> Response:
    """Find the noun phrases of a text within a picture; 409 where the library has no localizer."""
    if not text.strip():
        raise Refused(400, "the text is empty; give a phrase or a sentence, such as 'a dog on the beach'")

    def work(locator: Locator, library: Library) -> Answer:
        try:
            return locator.locate(library, id, text, k)
        except UserError as error:  # the text is not empty, so it is the item that is not there, or its picture
            raise Refused(404, str(error)) from None

    found = await here.locate(work)
    times = {stage: round(1000 * seconds, 3) for stage, seconds in found.timings.items()}
    answer = LocateAnswer(
        width=found.width, height=found.height, phrases=[_phrase(located) for located in found.phrases],
        unknown=list(found.unknown), proposals=found.proposals, milliseconds=times,
    )  # fmt: skip
    timing = ", ".join(f"{stage};dur={ms:.3f}" for stage, ms in times.items())
    return Response(answer.model_dump_json(), media_type="application/json", headers={"Server-Timing": timing})


def _phrase(located: Located) -> PhraseAnswer:
    boxes = [BoxAnswer(box=hit.box, score=hit.score, rank=hit.rank) for hit in located.hits]
    return PhraseAnswer(start=located.span.start, end=located.span.end, text=located.text, boxes=boxes)
