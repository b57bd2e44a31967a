"""The route that says which words of a text a picture is found by, and where they look in it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from calligram.errors import UserError
from calligram.features.word_spans import words_of
from calligram.search.searcher import Searcher
from calligram.search.word_weights import Explained
from calligram.serve.problems import Refused, documented
from calligram.serve.schema import AttentionAnswer, ExplainAnswer, Id, WordAnswer
from calligram.serve.service import Service, service
from calligram.serve.settings import MAX_QUERY, MAX_WORDS

router = APIRouter(prefix="/api", tags=["items"])
Here = Annotated[Service, Depends(service)]


@router.get("/explain", responses=documented(400, 404, 422, 503))
async def explain(
    here: Here,
    id: Annotated[Id, Query(description="Of a picture, as search gives it.")],
    text: Annotated[str, Query(max_length=MAX_QUERY, description=f"A sentence of 2 to {MAX_WORDS} words.")],
) -> ExplainAnswer:
    """Weigh the words of a text, by how much the picture's score falls without each, and say where each looks."""
    count = len(words_of(text))
    if not 2 <= count <= MAX_WORDS:
        raise Refused(400, f"words are weighed by leaving out one at a time; give 2 to {MAX_WORDS}, got {count}")

    def work(searcher: Searcher) -> Explained:
        try:
            return searcher.explain(id, text)
        except UserError as error:  # the words are right, so it is the item that is not there
            raise Refused(404, str(error)) from None

    found = await here.search(work)
    looks = None if found.attention is None else AttentionAnswer(**found.attention.plain())
    words = [WordAnswer(**word._asdict()) for word in found.words]
    return ExplainAnswer(score=found.score, words=words, attention=looks)
