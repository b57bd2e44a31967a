"""What is asked and what is answered, as the OpenAPI description shows it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from calligram.serve.settings import (
    MAX_BUDGET,
    MAX_CAPTION,
    MAX_DEPTH,
    MAX_ID,
    MAX_K,
    MAX_QUERY,
    MAX_TERMS,
    MAX_TOKEN,
    MAX_WHERE,
)

Text = Annotated[str, StringConstraints(max_length=MAX_QUERY)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID)]
Value = str | int | float | bool | None


class SearchRequest(BaseModel):
    """A query: everything that is wanted, less everything in ``minus``, each at its weight."""

    model_config = ConfigDict(extra="forbid")

    q: Text = Field("", description="What to look for, in words.")
    plus: list[Text] = Field([], max_length=MAX_TERMS, description="More wanted terms, as TEXT or WEIGHT:TEXT.")
    minus: list[Text] = Field([], max_length=MAX_TERMS, description="Unwanted terms, as TEXT or WEIGHT:TEXT.")
    like: list[Id] = Field([], max_length=MAX_TERMS, description="Items to be like, as ID.")
    unlike: list[Id] = Field([], max_length=MAX_TERMS, description="Items to be unlike, as ID.")
    k: int = Field(48, ge=1, le=MAX_K, description="How many hits at most.")
    where: str = Field("", max_length=MAX_WHERE, description="A condition on the metadata, as year >= 2020.")
    find: Literal["images", "captions"] = Field("images", description="What the hits are.")
    all: bool = Field(False, description="Also hits that are no good match.")
    hybrid: bool | None = Field(
        None, description="Join words found in captions and names; null leaves it to the library."
    )
    depth: int | None = Field(None, ge=1, le=MAX_DEPTH, description="How many candidates are re-ranked.")
    budget_ms: float | None = Field(
        None,
        gt=0,
        le=MAX_BUDGET,
        description="Milliseconds that the answer may take: as many candidates are re-ranked as fit; not with depth.",
    )


class ImageSearchRequest(SearchRequest):
    """The same with a picture, which is one of the wanted terms."""

    image: UploadFile = Field(description="A picture: JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF.")


class LoginRequest(BaseModel):
    """The token, once; a cookie stands for it afterwards."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field(max_length=MAX_TOKEN)


class HitAnswer(BaseModel):
    """One thing found."""

    id: str
    score: float
    rank: int = Field(ge=1)
    path: str | None
    text: str | None = Field(None, description="Of a caption.")


class SearchAnswer(BaseModel):
    """Hits, best first."""

    hits: list[HitAnswer]
    below: int = Field(ge=0, description="Candidates left out because they are no good match; all=true brings them.")
    milliseconds: dict[str, float] = Field(description="Where the time went: encode, search, rerank.")
    depth: int = Field(ge=0, description="Candidates that a second stage compared with the query; 0 where none did.")
    took: float = Field(description="Milliseconds, all in all.")


class BrowseAnswer(BaseModel):
    """Pictures without a query."""

    hits: list[HitAnswer]


class ItemAnswer(BaseModel):
    """A picture and what is known of it."""

    id: str
    name: str
    folder: str
    path: str | None
    width: int
    height: int
    captions: list[str]
    metadata: dict[str, Value]


class BoxAnswer(BaseModel):
    """A part of a picture."""

    box: tuple[float, float, float, float] = Field(
        description="Left, top, right and bottom, in pixels of a picture of the given width and height."
    )
    score: float = Field(description="Higher is better; comparable within a picture only.")
    rank: int = Field(ge=1)


class PhraseAnswer(BaseModel):
    """A noun phrase and where it is."""

    start: int = Field(ge=0, description="Its first character in the text, counting Unicode's code points.")
    end: int = Field(ge=1, description="The character after its last.")
    text: str
    boxes: list[BoxAnswer] = Field(description="Best first; none where no telling word of the phrase is known.")


class LocateAnswer(BaseModel):
    """The noun phrases of a text, in its order; a text without any is one phrase."""

    width: int = Field(ge=1, description="Of the picture, upright.")
    height: int = Field(ge=1)
    phrases: list[PhraseAnswer]
    unknown: list[str] = Field(description="Words of the phrases that the localizer has never seen.")
    proposals: int = Field(ge=1, description="Boxes that were compared.")
    milliseconds: dict[str, float] = Field(description="Where the time went: look, rank.")


class WordAnswer(BaseModel):
    """A word of a text."""

    word: str
    start: int = Field(ge=0, description="Its first character in the text, counting Unicode's code points.")
    end: int = Field(ge=1, description="The character after its last.")
    weight: float = Field(description="What the score loses without it; below zero where it gains.")


class AttentionAnswer(BaseModel):
    """Who looks where, in shares of one."""

    boxes: list[tuple[float, float, float, float]] | None = Field(
        description="Left, top, right and bottom of each region in shares of the picture; null where not known."
    )
    words: list[list[float] | None] = Field(
        description="Of each word, how much it looks at each region; null for a word that was cut off."
    )
    regions: list[list[float]] = Field(description="Of each region, how much it looks at each word.")
    rest: list[float] = Field(description="Of each region, what is left for the ends of the text and punctuation.")
    scored: list[Literal["words", "regions"]] = Field(description="Whose looks the score goes by.")


class ExplainAnswer(BaseModel):
    """What each word has to do with a picture's score."""

    score: float = Field(description="Of the picture with the whole text.")
    words: list[WordAnswer] = Field(description="In the order of the text.")
    attention: AttentionAnswer | None = Field(
        description="Null for a matcher that compares one vector of the picture with one of the text."
    )


class CaptionRequest(BaseModel):
    """A caption for an image of the collection."""

    model_config = ConfigDict(extra="forbid")

    id: Id = Field(description="Of the image, as suggestions give it.")
    text: str = Field(max_length=MAX_CAPTION, description="What the picture shows, in a sentence.")


class CaptionAnswer(BaseModel):
    """What became of a caption."""

    added: bool = Field(description="False where the image has this caption already.")


class SuggestedAnswer(BaseModel):
    """An image to caption."""

    id: str
    why: str


class SuggestionsAnswer(BaseModel):
    """Images to caption next, the most telling first."""

    state: Literal["working", "ready", "failed"]
    said: str = Field(description="What is being done while working, or what went wrong.")
    captioned: int = Field(ge=0, description="Images that have captions.")
    left: int = Field(ge=0, description="Images that have none, those proposed among them.")
    suggestions: list[SuggestedAnswer]


class FacetValue(BaseModel):
    """One value of a column, and how many items have it."""

    value: Value
    count: int


class StatsAnswer(BaseModel):
    """The library: what is in it, and what it can be filtered by."""

    stats: dict[str, Any] = Field(description="Counts and names, as the library gives them.")
    facets: dict[str, list[FacetValue]] = Field(description="The commonest values of columns worth a filter.")
    examples: list[str] = Field(description="Captions that read like queries.")
    columns: dict[str, str] = Field(description="Every column that a condition may name, and its kind.")
    limits: dict[str, int]
    localizer: bool = Field(description="Whether phrases can be found within pictures.")
    captioning: bool = Field(description="Whether captions can be written into a collection.")


class HealthAnswer(BaseModel):
    """Whether the server can answer, and what it had to say about the library since."""

    status: Literal["ok"]
    version: str
    problem: str | None = Field(None, description="Why a newer state of the library could not be taken up.")


class ErrorAnswer(BaseModel):
    """Why a request was refused."""

    error: str
    id: str | None = Field(None, description="Of the log's entry, where the fault is the server's.")
