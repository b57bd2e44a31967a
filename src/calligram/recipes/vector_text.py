"""Text vectors as recipes set them up: one vector for each text, fitted on the training captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from calligram.errors import UserError
from calligram.features.known_words import WordVectors
from calligram.features.text_vectors import VectorSettings, VectorText
from calligram.progress import Track, silent
from calligram.recipes.vse import ImageSettings


@dataclass(frozen=True)
class VectorTextSettings:
    """The text side as fitted vectors."""

    words: Annotated[str, "file of word vectors; tf-idf needs none"] = ""
    vectors: VectorSettings = field(default_factory=VectorSettings)


def need_vectors(image: ImageSettings) -> None:
    """Refuse an image side that would train a network from scratch: these recipes start from features."""
    if not image.backbone and not image.features:
        raise UserError(
            "this recipe starts from image features: give image.backbone= with a vision model, or image.features= with "
            "the name of arrays stored with the collection"
        )
    if image.views != "one" and image.features:
        raise UserError("image.views needs pictures; stored features have been computed already")


def fitted_text(settings: VectorTextSettings, strings: Sequence[str], track: Track = silent) -> VectorText:
    """Fit on training texts."""
    words = WordVectors.read(Path(settings.words), strings) if settings.words else None
    return VectorText.fit(strings, words, settings.vectors, track)
