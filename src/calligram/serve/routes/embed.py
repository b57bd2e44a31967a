"""Routes that give vectors of texts and pictures, so that other programs can use the matcher of the library."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Form, Query
from fastapi.responses import Response
from numpy.typing import NDArray

from calligram.search.library.matchers import unit_vectors
from calligram.search.query.searcher import Searcher
from calligram.serve.guard import RefusedRequest, error_responses, read_upload
from calligram.serve.schema import (
    EmbedAnswer,
    Embedding,
    EmbeddingModel,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    EmbeddingUsage,
    EmbedRequest,
    ImageEmbedRequest,
    ModelsAnswer,
)
from calligram.serve.service import Service, service_of
from calligram.text import tokenise

Floats = NDArray[np.float32]
router = APIRouter(tags=["embeddings"])
CurrentService = Annotated[Service, Depends(service_of)]


@router.get("/api/embed", response_model=EmbedAnswer, responses=error_responses(400, 422, 503))
async def embed(service: CurrentService, request: Annotated[EmbedRequest, Query()]) -> Response:
    """Vectors of texts."""
    return await _embedded(service, request.text, [])


@router.post("/api/embed", response_model=EmbedAnswer, responses=error_responses(400, 408, 413, 415, 422, 503))
async def embed_images(
    service: CurrentService, request: Annotated[ImageEmbedRequest, Form(media_type="multipart/form-data")]
) -> Response:
    """Vectors of pictures, alone or with texts. A picture and a text that fit have a large inner product."""
    return await _embedded(service, request.text, [await picture.read() for picture in request.image])


@router.post("/v1/embeddings", response_model=EmbeddingsAnswer, responses=error_responses(400, 404, 408, 413, 422, 503))
async def embeddings(service: CurrentService, request: EmbeddingsRequest) -> Response:
    """Vectors of texts, in the JSON of the common embedding APIs."""
    texts = [request.input] if isinstance(request.input, str) else request.input

    def work(searcher: Searcher) -> EmbeddingsAnswer:
        _check_model(searcher, request)
        rows = [
            Embedding(index=place, embedding=_written(vector, request.encoding_format))
            for place, vector in enumerate(unit_vectors(searcher.encoder.texts(texts)))
        ]
        tokens = sum(_count_tokens(searcher, text) for text in texts)
        usage = EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
        return EmbeddingsAnswer(data=rows, model=model_name(searcher), usage=usage)

    return _json(await service.search(work))


@router.get("/v1/models", responses=error_responses())
async def models(service: CurrentService) -> ModelsAnswer:
    """The name of the matcher, in the JSON of the common embedding APIs."""
    started = int(service.metrics.started)
    return ModelsAnswer(data=[EmbeddingModel(id=model_name(service.searcher), created=started)])


def model_name(searcher: Searcher) -> str:
    """The name of the library's matcher: the last part of its folder, or its name on a hub."""
    source = searcher.library.manifest.matcher.source
    return Path(source).name if Path(source).is_absolute() else source


async def _embedded(service: Service, texts: list[str], pictures: list[bytes]) -> Response:
    if not texts and not pictures:
        raise RefusedRequest(400, "there is nothing to embed; give text, or send a picture as a form")

    def work(searcher: Searcher) -> EmbedAnswer:
        encoder, manifest = searcher.encoder, searcher.library.manifest
        images = [read_upload(content, service.settings) for content in pictures]
        return EmbedAnswer(
            model=model_name(searcher),
            fingerprint=manifest.matcher.fingerprint,
            dimension=manifest.dim,
            texts=unit_vectors(encoder.texts(texts)).tolist() if texts else [],
            images=unit_vectors(encoder.images(images)).tolist() if images else [],
            truncated=[encoder.truncated_words(text) for text in texts],
        )

    return _json(await service.search(work))


def _check_model(searcher: Searcher, request: EmbeddingsRequest) -> None:
    name, dimension = model_name(searcher), searcher.library.manifest.dim
    if request.model not in (None, name):
        raise RefusedRequest(404, f"unknown model {request.model!r}; this server has {name!r}")
    if request.dimensions not in (None, dimension):
        raise RefusedRequest(
            400, f"vectors of {name!r} have {dimension} dimensions, not {request.dimensions}; leave out dimensions"
        )


def _count_tokens(searcher: Searcher, text: str) -> int:
    """Number of tokens that the matcher reads; words for a matcher without tokens."""
    spans = searcher.encoder.token_spans(text)
    return len(tokenise(text)) if spans is None else len(spans)


def _written(vector: Floats, encoding_format: str) -> list[float] | str:
    if encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    written: list[float] = vector.tolist()
    return written


def _json(answer: EmbedAnswer | EmbeddingsAnswer) -> Response:
    # Written directly: FastAPI would check every number of the answer once more.
    return Response(answer.model_dump_json(), media_type="application/json")
