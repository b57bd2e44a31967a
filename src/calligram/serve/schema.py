"""Requests and answers of the API, as the OpenAPI description shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from calligram.search.query.selection import MAX_NAME_CHARACTERS
from calligram.serve.settings import (
    MAX_BUDGET_MS,
    MAX_CAPTION_REQUEST_CHARACTERS,
    MAX_CONDITION_CHARACTERS,
    MAX_EMBEDDED_CHARACTERS,
    MAX_EMBEDDED_IMAGES,
    MAX_EMBEDDED_TEXTS,
    MAX_HITS,
    MAX_ID_CHARACTERS,
    MAX_QUERY_CHARACTERS,
    MAX_QUERY_TERMS,
    MAX_RERANKED_CANDIDATES,
    MAX_TOKEN_CHARACTERS,
)

QueryText = Annotated[str, StringConstraints(max_length=MAX_QUERY_CHARACTERS)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID_CHARACTERS)]
MetadataValue = str | int | float | bool | None


# Search.


class SearchRequest(BaseModel):
    """A query: the weighted sum of its terms. The terms in ``minus`` and ``unlike`` are subtracted."""

    model_config = ConfigDict(extra="forbid")

    q: QueryText = Field("", description="Text to search for.")
    plus: list[QueryText] = Field(
        [], max_length=MAX_QUERY_TERMS, description="More texts to search for, as TEXT or WEIGHT:TEXT."
    )
    minus: list[QueryText] = Field(
        [], max_length=MAX_QUERY_TERMS, description="Texts to subtract, as TEXT or WEIGHT:TEXT."
    )
    like: list[Id] = Field([], max_length=MAX_QUERY_TERMS, description="Ids of items to search for.")
    unlike: list[Id] = Field([], max_length=MAX_QUERY_TERMS, description="Ids of items to subtract.")
    k: int = Field(48, ge=1, le=MAX_HITS, description="Maximum number of hits.")
    where: str = Field(
        "", max_length=MAX_CONDITION_CHARACTERS, description="A condition on the metadata, such as year >= 2020."
    )
    album: str = Field("", max_length=MAX_NAME_CHARACTERS, description="Search within the pictures of this album.")
    find: Literal["images", "captions"] = Field("images", description="Kind of the hits.")
    all: bool = Field(False, description="Also return hits that are not a good match.")
    hybrid: bool | None = Field(
        None,
        description="Combine with a keyword search in captions and file names; null: the default of the library.",
    )
    exact: bool = Field(False, description="Compare all vectors, also in a large library; this takes longer.")
    depth: int | None = Field(
        None, ge=1, le=MAX_RERANKED_CANDIDATES, description="Number of candidates that the second stage compares."
    )
    budget_ms: float | None = Field(
        None,
        gt=0,
        le=MAX_BUDGET_MS,
        description="Time limit in milliseconds: the second stage compares as many candidates as fit. "
        "It cannot be combined with depth.",
    )


class ImageSearchRequest(SearchRequest):
    """A query with a picture, which is one of the terms to search for."""

    image: UploadFile = Field(description="A picture: JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF.")


class HitAnswer(BaseModel):
    """One image or caption that was found."""

    id: str
    score: float
    rank: int = Field(ge=1)
    path: str | None = Field(description="Of a picture file; null for clients on other machines.")
    name: str | None = Field(default=None, description="File name of a picture, or its id; null for captions.")
    text: str | None = Field(None, description="Text of a caption; null for images.")


class SearchAnswer(BaseModel):
    """Hits in descending order of their score."""

    hits: list[HitAnswer]
    below: int = Field(
        ge=0, description="How many of the nearest k are not a good match and were left out; all=true returns them."
    )
    milliseconds: dict[str, float] = Field(description="Time of each stage: encode, search, rerank.")
    depth: int = Field(
        ge=0, description="Number of candidates that the second stage compared; 0 without a second stage."
    )
    took: float = Field(description="Total time in milliseconds.")
    recall: float | None = Field(
        None,
        description="Share of the ten nearest items that an approximate search of this library finds, as measured when "
        "it was indexed; null where all items were compared.",
    )
    unknown: list[str] = Field(default=[], description="Words of the query that the matcher does not know.")


class BrowseAnswer(BaseModel):
    """Images without a query."""

    hits: list[HitAnswer]
    total: int | None = Field(default=None, description="Number of all such images; null where they are not counted.")
    missing: int = Field(default=0, description="Number of images of the album that the library no longer has.")


# Items.


class TileAnswer(BaseModel):
    """What the page shows of a picture in a grid."""

    id: str
    caption: str | None = Field(description="Its first caption.")
    taken: str | None = Field(description="Date and time, as 2019-07-02T12:30:00.")
    content: str = Field(description="Equal for files with the same bytes.")


class TilesAnswer(BaseModel):
    """Pictures of a grid, in no order."""

    tiles: list[TileAnswer]


class CompletionsAnswer(BaseModel):
    """Texts that complete a query."""

    texts: list[str]


class ItemAnswer(BaseModel):
    """An image with its captions and metadata."""

    id: str
    name: str
    folder: str
    path: str | None
    width: int
    height: int
    captions: list[str]
    metadata: dict[str, MetadataValue]
    time: float | None = Field(description="Second of the video that the image is a frame of; null for other images.")


class BoxAnswer(BaseModel):
    """A box in an image."""

    box: tuple[float, float, float, float] = Field(
        description="Left, top, right and bottom in pixels, for the given width and height of the image."
    )
    score: float = Field(description="Higher is better; comparable within one image only.")
    rank: int = Field(ge=1)


class PhraseAnswer(BaseModel):
    """A noun phrase and its boxes."""

    start: int = Field(ge=0, description="Index of its first character in the text, in Unicode code points.")
    end: int = Field(ge=1, description="Index after its last character.")
    text: str
    boxes: list[BoxAnswer] = Field(
        description="Best first; empty if the localizer knows none of its words, stop words aside."
    )


class LocateAnswer(BaseModel):
    """The noun phrases of a text in its order. A text without a noun phrase is one phrase."""

    width: int = Field(ge=1, description="Width of the upright image in pixels.")
    height: int = Field(ge=1, description="Height of the upright image in pixels.")
    phrases: list[PhraseAnswer]
    unknown: list[str] = Field(description="Words of the phrases that are not in the localizer's vocabulary.")
    proposals: int = Field(ge=1, description="Number of boxes that were compared.")
    milliseconds: dict[str, float] = Field(description="Time of each stage: look, rank.")


class WordAnswer(BaseModel):
    """A word of a text and its importance."""

    word: str
    start: int = Field(ge=0, description="Index of its first character in the text, in Unicode code points.")
    end: int = Field(ge=1, description="Index after its last character.")
    weight: float = Field(
        description="Score of the whole text minus the score without the word; negative if the word lowers the score."
    )


class AttentionAnswer(BaseModel):
    """Attention between words and regions. The attention of a word over all regions sums to 1."""

    boxes: list[tuple[float, float, float, float]] | None = Field(
        description="Left, top, right and bottom of each region as shares of the image; null if they are unknown."
    )
    words: list[list[float] | None] = Field(
        description="For each word, its attention to each region; null for a word that was truncated."
    )
    regions: list[list[float]] = Field(description="For each region, its attention to each word.")
    rest: list[float] = Field(
        description="For each region, its attention to punctuation and to the tokens that mark the ends of the text."
    )
    scored: list[Literal["words", "regions"]] = Field(description="The directions of attention that the score uses.")


class ExplainAnswer(BaseModel):
    """The importance of each word for the score of an image."""

    score: float = Field(description="Score of the image with the whole text.")
    words: list[WordAnswer] = Field(description="In the order of the text.")
    attention: AttentionAnswer | None = Field(
        description="Null for a matcher that compares one vector of the image with one vector of the text."
    )


# Embeddings.

EmbeddedText = Annotated[str, StringConstraints(max_length=MAX_EMBEDDED_CHARACTERS, pattern=r"\S")]
Texts = Annotated[list[EmbeddedText], Field(max_length=MAX_EMBEDDED_TEXTS)]


class EmbedRequest(BaseModel):
    """Texts to embed."""

    model_config = ConfigDict(extra="forbid")

    text: Texts = Field([], description="Texts to embed; may be repeated.")


class ImageEmbedRequest(EmbedRequest):
    """Pictures to embed, alone or with texts."""

    image: list[UploadFile] = Field(
        min_length=1,
        max_length=MAX_EMBEDDED_IMAGES,
        description="Pictures: JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF; may be repeated.",
    )


class EmbedAnswer(BaseModel):
    """Vectors of unit length. The inner product of two of them is their cosine."""

    model: str = Field(description="Name of the library's matcher.")
    fingerprint: str = Field(description="Hash of the matcher's weights: vectors of two matchers cannot be compared.")
    dimension: int = Field(ge=1)
    texts: list[list[float]] = Field(description="One vector for each text, in the order of the request.")
    images: list[list[float]] = Field(description="One vector for each picture, in the order of the request.")
    truncated: list[int] = Field(
        description="For each text, the number of words at its end that the matcher does not read."
    )


class EmbeddingsRequest(BaseModel):
    """Texts to embed, in the form of the common embedding APIs."""

    model_config = ConfigDict(extra="forbid")

    input: EmbeddedText | Annotated[Texts, Field(min_length=1)] = Field(
        description="A text or a list of texts; lists of token numbers are not accepted."
    )
    model: str | None = Field(
        None, max_length=MAX_ID_CHARACTERS, description="Name of the library's matcher, as in /v1/models."
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="Numbers, or the base64 form of 32-bit floats, lowest byte first."
    )
    dimensions: int | None = Field(None, ge=1, description="The dimension of the vectors; no other is accepted.")
    user: str | None = Field(None, max_length=MAX_ID_CHARACTERS, description="Not used.")


class Embedding(BaseModel):
    """The vector of one text."""

    object: Literal["embedding"] = "embedding"
    index: int = Field(ge=0, description="Place of the text in the request.")
    embedding: list[float] | str = Field(description="Numbers, or base64.")


class EmbeddingUsage(BaseModel):
    """Tokens that the matcher read."""

    prompt_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)


class EmbeddingsAnswer(BaseModel):
    """Vectors of unit length."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class EmbeddingModel(BaseModel):
    """The matcher of the library."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Time when the server started, in seconds since 1970.")
    owned_by: Literal["calligram"] = "calligram"


class ModelsAnswer(BaseModel):
    """The models of this server: one, the matcher of the library."""

    object: Literal["list"] = "list"
    data: list[EmbeddingModel]


# Captions.


class CaptionRequest(BaseModel):
    """A caption for an image of the collection."""

    model_config = ConfigDict(extra="forbid")

    id: Id = Field(description="Id of the image, as in the suggestions.")
    text: str = Field(
        max_length=MAX_CAPTION_REQUEST_CHARACTERS, description="A sentence that describes what the image shows."
    )


class CaptionAnswer(BaseModel):
    """Whether a caption was added."""

    added: bool = Field(description="False if the image has this caption already.")


class SuggestedAnswer(BaseModel):
    """An image to caption."""

    id: str
    why: str = Field(description="Why the image was chosen.")


class SuggestionsAnswer(BaseModel):
    """Images to caption next, the most useful first."""

    state: Literal["working", "ready", "failed"]
    said: str = Field(description="The present step while working, or the error.")
    captioned: int = Field(ge=0, description="Number of images that have captions.")
    left: int = Field(ge=0, description="Number of images without captions, including the suggested ones.")
    suggestions: list[SuggestedAnswer]


# The library and the server.


class FacetValue(BaseModel):
    """One value of a column, and the number of items with it."""

    value: MetadataValue
    count: int


class StatsAnswer(BaseModel):
    """What the library contains and how it can be filtered."""

    stats: dict[str, Any] = Field(description="Counts and names.")
    facets: dict[str, list[FacetValue]] = Field(description="The most frequent values of columns to filter by.")
    examples: list[str] = Field(description="Captions that can serve as example queries.")
    columns: dict[str, str] = Field(description="Name and type of every column that a condition may use.")
    limits: dict[str, int]
    localizer: bool = Field(description="Whether phrases can be localized in images.")
    captioning: bool = Field(description="Whether captions can be written into a collection.")
    saving: bool = Field(description="Whether searches and albums can be saved.")


class HealthAnswer(BaseModel):
    """Whether the server answers."""

    status: Literal["ok"]
    version: str
    problem: str | None = Field(None, description="Why a newer version of the library could not be opened.")


class LoginRequest(BaseModel):
    """The token. The answer sets a cookie that replaces it."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field(max_length=MAX_TOKEN_CHARACTERS)


class ErrorAnswer(BaseModel):
    """Why a request was refused."""

    error: str
    id: str | None = Field(None, description="Id of the log entry, if the server is at fault.")
