"""Text towers of fitted vectors: one vector per text, fitted on the training captions and kept in a cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from calligram.errors import UserError, command
from calligram.features.texts.text_vectors import TextVectorInput, TextVectorSettings
from calligram.features.texts.word_counts import WordVectors
from calligram.files import parts_hash, replace_text
from calligram.progress import Track, silent

FIT_VERSION = 1
"""raised when the same settings give other vectors, so that cached fits are not used again"""


@dataclass(frozen=True)
class VectorTextSettings:
    """Settings of a text tower of fitted vectors."""

    words: Annotated[str, "file of word vectors; empty for tf-idf, which needs none"] = ""
    vectors: TextVectorSettings = field(default_factory=TextVectorSettings)


def fitted_text(
    settings: VectorTextSettings, strings: Sequence[str], track: Track = silent, cache: Path | None = None
) -> TextVectorInput:
    """Return text vectors fitted on training texts.

    Args:
        cache: folder of a collection; slow fits (Fisher vectors) are kept there.
    """
    if cache is None or settings.vectors.kind in ("mean", "tfidf"):
        return _fit(settings, strings, track)
    kept = cache / f"text-vectors-{_cache_key(settings, strings)}"
    about = kept / "about.json"
    if not about.is_file():
        found = _fit(settings, strings, track)
        kept.mkdir(parents=True, exist_ok=True)
        # Written last: a folder without this file is incomplete and is not used.
        replace_text(about, json.dumps(found.save(kept)))
        return found
    return TextVectorInput.read(kept, json.loads(about.read_text(encoding="utf-8")))


def _fit(settings: VectorTextSettings, strings: Sequence[str], track: Track) -> TextVectorInput:
    words = WordVectors.read(Path(settings.words), strings) if settings.words else None
    return TextVectorInput.fit(strings, words, settings.vectors, track)


def _cache_key(settings: VectorTextSettings, strings: Sequence[str]) -> str:
    """Return a hash of everything that a fit depends on."""
    parts = [json.dumps([FIT_VERSION, asdict(settings.vectors), list(strings)]).encode()]
    if settings.words:
        try:
            parts.append(Path(settings.words).read_bytes())
        except OSError as error:
            raise UserError(
                f"word vectors {settings.words} could not be read ({error.strerror}); train some with "
                + command("calligram", "words", "TEXT", settings.words)
            ) from error
    return parts_hash(parts, 8)
