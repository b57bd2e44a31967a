"""Text towers of fitted vectors: one vector per text, fitted on the training captions and kept in a cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from calligram.errors import UserError, command
from calligram.features.texts.text_vectors import TextVectorInput, TextVectorSettings
from calligram.features.texts.word_counts import WordVectors
from calligram.files import LOCK_FILE, parts_hash, replace_text, wait_for_lock
from calligram.progress import Track, silent

FIT_VERSION = 1
"""raised when the same settings give other vectors, so that cached fits are not used again"""


def fitted_text(
    settings: TextVectorSettings,
    words: str,
    strings: Sequence[str],
    track: Track = silent,
    cache: Path | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> TextVectorInput:
    """Return text vectors fitted on training texts.

    Args:
        words: file of word vectors; empty for tf-idf, which needs none.
        cache: folder of a collection; slow fits (Fisher vectors) are kept there.
        seed: seed of the run.
        device: where matrix products of the fit, and later those of the vectors, are computed.
    """
    found = _kept_fit(settings, words, strings, track, cache, seed, device)
    found.to(device)
    return found


def _kept_fit(
    settings: TextVectorSettings,
    words: str,
    strings: Sequence[str],
    track: Track,
    cache: Path | None,
    seed: int,
    device: torch.device | str,
) -> TextVectorInput:
    """Read the fit from the cache, or make it."""
    seed %= 2**32  # seeds of a run have more bits
    if cache is None or settings.kind in ("mean", "tfidf"):
        return _fit(settings, words, strings, track, device, seed)
    kept = cache / f"text-vectors-{_cache_key(settings, words, strings, seed)}"
    about = kept / "about.json"
    if not about.is_file():
        kept.mkdir(parents=True, exist_ok=True)
        with wait_for_lock(kept / LOCK_FILE):  # another process may be at the same fit
            if not about.is_file():
                found = _fit(settings, words, strings, track, device, seed)
                # Written last: a folder without this file is incomplete and is not used.
                replace_text(about, json.dumps(found.save(kept)))
                return found
    return TextVectorInput.read(kept, json.loads(about.read_text(encoding="utf-8")))


def _fit(
    settings: TextVectorSettings,
    words: str,
    strings: Sequence[str],
    track: Track,
    device: torch.device | str,
    seed: int,
) -> TextVectorInput:
    vectors = WordVectors.read(Path(words), strings) if words else None
    return TextVectorInput.fit(strings, vectors, settings, track, device, seed)


def _cache_key(settings: TextVectorSettings, words: str, strings: Sequence[str], seed: int) -> str:
    """Return a hash of everything that a fit depends on."""
    parts = [json.dumps([FIT_VERSION, asdict(settings), seed, list(strings)]).encode()]
    if words:
        try:
            parts.append(Path(words).read_bytes())
        except OSError as error:
            raise UserError(
                f"word vectors {words} could not be read ({error.strerror}); train some with "
                + command("calligram", "words", "TEXT", words)
            ) from error
    return parts_hash(parts, 8)
