"""The route that says which words of a text a picture is found by, and where they look in it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from calligram.errors import UserError
from calligram.search.explain.library_localizer import LibraryLocalizer, LocatedPhrases
from calligram.search.explain.localize import LocatedPhrase
from calligram.search.explain.word_importance import WordImportances
from calligram.search.library.library import Library
from calligram.search.query.searcher import Searcher
from calligram.serve.guard import RefusedRequest, documented
from calligram.serve.schema import AttentionAnswer, BoxAnswer, ExplainAnswer, Id, LocateAnswer, PhraseAnswer, WordAnswer
from calligram.serve.service import Service, service_of
from calligram.serve.settings import MAX_BOXES, MAX_QUERY, MAX_WORDS
from calligram.text import whitespace_word_spans

router = APIRouter(prefix="/api", tags=["items"])
Here = Annotated[Service, Depends(service_of)]


@router.get("/explain", responses=documented(400, 404, 422, 503))
async def explain(
    here: Here,
    id: Annotated[Id, Query(description="Of a picture, as search gives it.")],
    text: Annotated[str, Query(max_length=MAX_QUERY, description=f"A sentence of 2 to {MAX_WORDS} words.")],
) -> ExplainAnswer:
    """Weigh the words of a text, by how much the picture's score falls without each, and say where each looks."""
    count = len(whitespace_word_spans(text))
    if not 2 <= count <= MAX_WORDS:
        raise RefusedRequest(400, f"words are weighed by leaving out one at a time; give 2 to {MAX_WORDS}, got {count}")

    def work(searcher: Searcher) -> WordImportances:
        try:
            return searcher.explain(id, text)
        except UserError as error:  # the words are right, so it is the item that is not there
            raise RefusedRequest(404, str(error)) from None

    found = await here.search(work)
    looks = None if found.attention is None else AttentionAnswer(**found.attention.plain())
    words = [WordAnswer(**word._asdict()) for word in found.words]
    return ExplainAnswer(score=found.score, words=words, attention=looks)


# The route that finds phrases within a picture.


@router.get("/locate", response_model=LocateAnswer, responses=documented(400, 404, 409, 422, 503))
async def locate(
    here: Here,
    id: Annotated[Id, Query(description="Of a picture, as search gives it.")],
    text: Annotated[str, Query(max_length=MAX_QUERY, description="A phrase or a sentence.")],
    k: Annotated[int, Query(ge=1, le=MAX_BOXES, description="Boxes of each phrase at most.")] = 3,
) -> Response:
    """Find the noun phrases of a text within a picture; 409 where the library has no localizer."""
    if not text.strip():
        raise RefusedRequest(400, "the text is empty; give a phrase or a sentence, such as 'a dog on the beach'")

    def work(locator: LibraryLocalizer, library: Library) -> LocatedPhrases:
        try:
            return locator.locate(library, id, text, k)
        except UserError as error:  # the text is not empty, so it is the item that is not there, or its picture
            raise RefusedRequest(404, str(error)) from None

    found = await here.locate(work)
    times = {stage: round(1000 * seconds, 3) for stage, seconds in found.timings.items()}
    answer = LocateAnswer(
        width=found.width, height=found.height, phrases=[_phrase(located) for located in found.phrases],
        unknown=list(found.unknown), proposals=found.proposals, milliseconds=times,
    )  # fmt: skip
    timing = ", ".join(f"{stage};dur={ms:.3f}" for stage, ms in times.items())
    return Response(answer.model_dump_json(), media_type="application/json", headers={"Server-Timing": timing})


def _phrase(located: LocatedPhrase) -> PhraseAnswer:
    boxes = [BoxAnswer(box=hit.box, score=hit.score, rank=hit.rank) for hit in located.hits]
    return PhraseAnswer(start=located.span.start, end=located.span.end, text=located.text, boxes=boxes)
