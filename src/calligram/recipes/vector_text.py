"""Text vectors as recipes set them up: one vector for each text, fitted on the training captions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from calligram.errors import UserError, command
from calligram.features.known_words import WordVectors
from calligram.features.text_vectors import VectorSettings, VectorText
from calligram.progress import Track, silent
from calligram.recipes.embedding import ImageSettings
from calligram.training.runs import write_whole

VERSION = 1
"""raised when the same settings fit other vectors, so that fits kept earlier are made again"""


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


def fitted_text(
    settings: VectorTextSettings, strings: Sequence[str], track: Track = silent, cache: Path | None = None
) -> VectorText:
    """Text vectors fitted on training texts; a fit that takes long is kept in ``cache``, a collection's."""
    if cache is None or settings.vectors.kind in ("mean", "tfidf"):
        return _fit(settings, strings, track)
    kept = cache / f"text-vectors-{_key(settings, strings)}"
    about = kept / "about.json"
    if not about.is_file():
        found = _fit(settings, strings, track)
        kept.mkdir(parents=True, exist_ok=True)
        # Last and whole: a folder without it was cut short and does not count.
        write_whole(about, json.dumps(found.save(kept)))
        return found
    return VectorText.read(kept, json.loads(about.read_text(encoding="utf-8")))


def _fit(settings: VectorTextSettings, strings: Sequence[str], track: Track) -> VectorText:
    words = WordVectors.read(Path(settings.words), strings) if settings.words else None
    return VectorText.fit(strings, words, settings.vectors, track)


def _key(settings: VectorTextSettings, strings: Sequence[str]) -> str:
    """A hash of everything that a fit depends on."""
    digest = hashlib.blake2b(json.dumps([VERSION, asdict(settings.vectors), list(strings)]).encode(), digest_size=8)
    if settings.words:
        try:
            digest.update(Path(settings.words).read_bytes())
        except OSError as error:
            raise UserError(
                f"word vectors {settings.words} could not be read ({error.strerror}); train some with "
                + command("calligram", "words", "TEXT", settings.words)
            ) from error
    return digest.hexdigest()
