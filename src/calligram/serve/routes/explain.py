"""Routes that explain a match: the importance of words, their attention, and the boxes of phrases."""

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
from calligram.serve.guard import RefusedRequest, error_responses
from calligram.serve.schema import AttentionAnswer, BoxAnswer, ExplainAnswer, Id, LocateAnswer, PhraseAnswer, WordAnswer
from calligram.serve.service import Service, service_of
from calligram.serve.settings import MAX_BOXES_PER_PHRASE, MAX_EXPLAINED_WORDS, MAX_QUERY_CHARACTERS
from calligram.text import whitespace_word_spans

router = APIRouter(prefix="/api", tags=["items"])
CurrentService = Annotated[Service, Depends(service_of)]
ImageId = Annotated[Id, Query(description="Id of an image, as in the hits of a search.")]


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
