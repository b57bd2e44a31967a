"""The matchers of a library: loaded for indexing or for search, compared with its manifest, and used to encode."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from calligram.errors import NotFiniteError, UserError, command
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import count_truncated_words
from calligram.files import lock_folder
from calligram.models.catalog import StoredMatcher, load_matcher
from calligram.models.matcher import Encoded
from calligram.search.library.manifest import MANIFEST, Manifest, MatcherRecord, read_manifest
from calligram.text import TextSpan, tokenise
from calligram.vectors import unit_length

Floats = NDArray[np.float32]
PathLike = str | os.PathLike[str]
NO_RERANKER = "none"
"""in place of a reranker: hits stay in the order of the vectors, also for a matcher that could re-rank"""
BATCH_TEXTS = 512
"""captions that are encoded in one batch"""


class MatcherEncoder:
    """Encodes texts and pictures with a matcher, and scores them. It never changes, so threads may share it."""

    def __init__(self, stored: StoredMatcher, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        self.fingerprint = stored.fingerprint
        self.matcher, self.inputs = stored.to(self.device).matcher.eval(), stored.inputs
        # Tokenizers of transformers set their padding at every call and refuse two calls at a time.
        self.tokenizer_lock = threading.Lock()

    @torch.inference_mode()
    def texts(self, strings: Sequence[str]) -> Encoded:
        """Encode texts."""
        with self.tokenizer_lock:
            words, mask = self.inputs.texts.texts(list(strings))
        return self.matcher.encode_texts(words.to(self.device), mask.to(self.device))

    def text_vectors(self, strings: Sequence[str]) -> Floats:
        """Vectors (N, D) of many texts, not normalised; texts of similar length share a batch, to avoid padding."""
        order = np.argsort([len(string) for string in strings], kind="stable")
        batches = [order[start : start + BATCH_TEXTS] for start in range(0, len(order), BATCH_TEXTS)]
        found = [self.texts([strings[row] for row in batch]).vectors.float().cpu().numpy() for batch in batches]
        return np.concatenate(found)[np.argsort(order, kind="stable")]

    def unknown_words(self, text: str) -> list[str]:
        """Words of a text that the matcher has no token for; none for a matcher that splits words into pieces."""
        return [word for word in tokenise(text) if not self.inputs.texts.is_known(word)]

    def truncated_words(self, text: str) -> int:
        """Number of words at the end of a text that are beyond the longest text the matcher reads."""
        with self.tokenizer_lock:
            return count_truncated_words(self.inputs.texts, text)

    def token_spans(self, text: str) -> Sequence[TextSpan | None] | None:
        """The tokens of a text that the matcher reads; None for a matcher of text vectors, which has no tokens."""
        with self.tokenizer_lock:
            return self.inputs.texts.token_spans(text)

    @torch.inference_mode()
    def images(self, images: Sequence[Image.Image]) -> Encoded:
        """Encode pictures."""
        rows = self.inputs.images.images(list(images)).to(self.device)
        return self.matcher.encode_images(self.inputs.images.finish(rows))

    @torch.inference_mode()
    def scores(self, images: Encoded, texts: Encoded) -> Floats:
        """All scores (I, T) of images and texts."""
        scores = self.matcher.score(on_device(images, self.device), on_device(texts, self.device)).float().cpu().numpy()
        if not np.isfinite(scores).all():
            raise NotFiniteError("the matcher's scores are not finite; it cannot be searched with")
        return np.ascontiguousarray(scores)


def unit_vectors(encoded: Encoded) -> Floats:
    """The vectors, scaled to unit length."""
    vectors = unit_length(encoded.vectors).cpu().numpy()
    if not np.isfinite(vectors).all():
        raise NotFiniteError("the matcher's vectors are not finite; it cannot be searched with")
    return np.ascontiguousarray(vectors, dtype=np.float32)


def on_device(encoded: Encoded, device: torch.device) -> Encoded:
    """Encodings on a device, in float32; a library stores parts in float16."""
    vectors, parts, mask = encoded.to(device)
    return Encoded(vectors.float(), None if parts is None else parts.float(), mask)


@dataclass(frozen=True)
class LibraryMatchers:
    """The matcher of the first stage, the reranker, and the localizer, which finds phrases in pictures."""

    matcher: StoredMatcher
    reranker: StoredMatcher | None = None
    localizer: StoredMatcher | None = None

    @classmethod
    def load(
        cls,
        matcher: PathLike,
        reranker: PathLike | None = None,
        localizer: PathLike | None = None,
        library: Path | None = None,
    ) -> LibraryMatchers:
        """Load the matchers; the reranker defaults to that of the library, if it has one.

        A matcher that scores pairs re-ranks the hits of its own vectors, unless the reranker is ``NO_RERANKER``.

        Args:
            matcher: run folder, or folder or hub name of a dual encoder.
            reranker: the same, or ``NO_RERANKER``.
            localizer: the same.
            library: folder of an existing library.

        Raises:
            UserError: when one cannot be loaded, a localizer is given as matcher or the reverse, or the reranker would
                order the hits in the same way as the matcher.
        """
        first = load_matcher(matcher)
        known = None
        if library is not None and (library / MANIFEST).is_file():
            known = _up_to_date(library)
        if reranker is None and known is not None and known.reranker not in (None, known.matcher):
            assert library is not None
            assert known.reranker is not None
            second: StoredMatcher | None = _recorded_reranker(library, known.reranker)
        elif reranker == NO_RERANKER or (reranker is None and known is not None and _has_no_reranker(known, first)):
            second = None
        elif reranker is not None:
            second = load_matcher(reranker)
            if second.fingerprint == first.fingerprint and not second.matcher.scoring.reranks:
                raise UserError(
                    f"{reranker} scores by the cosine of its vectors, which orders the candidates already; "
                    "leave out --reranker, or give a run that scores pairs, such as scan, bfan or mmca"
                )
        else:
            second = first if first.matcher.scoring.reranks else None
        for one in filter(None, (first, second)):
            refuse_regions(one.inputs, one.source)
        third = load_matcher(localizer) if localizer is not None else None
        if third is not None:
            from calligram.search.explain.localize import require_region_input

            require_region_input(third.inputs)
        return cls(first, second, third)

    def encoders(self, device: str | torch.device = "cpu") -> tuple[MatcherEncoder, MatcherEncoder | None]:
        """Encoders of the matcher and of the reranker; one encoder where both are the same matcher."""
        first = MatcherEncoder(self.matcher, device)
        if self.reranker is None or self.reranker.fingerprint == self.matcher.fingerprint:
            return first, None if self.reranker is None else first
        return first, MatcherEncoder(self.reranker, device)

    def records(self) -> dict[str, MatcherRecord | None]:
        """The records for a manifest, by role."""
        stored = {"matcher": self.matcher, "reranker": self.reranker, "localizer": self.localizer}
        return {name: MatcherRecord(s.fingerprint, s.source) if s is not None else None for name, s in stored.items()}

    def indexed(self, library: Path) -> bool:
        """Whether a library was indexed with these matchers."""
        try:
            manifest = read_manifest(library)
        except UserError:
            return False
        return not any(self._differs(manifest, name) for name in self.records())

    def _differs(self, manifest: Manifest, name: str) -> bool:
        model, before = self.records()[name], getattr(manifest, name)
        if name == "localizer":  # nothing stored depends on it
            return False
        return bool((before and before.fingerprint) != (model and model.fingerprint))

    def check(self, manifest: Manifest, library: Path, source: Path) -> None:
        """Refuse a library that was indexed with other matchers.

        Raises:
            UserError: with the command that rebuilds it.
        """
        for name, model in self.records().items():
            if self._differs(manifest, name):
                before = _description(name, getattr(manifest, name))
                raise UserError(
                    f"{library} was indexed with {before}, this is {_description(name, model)}; rebuild it with "
                    f"{self._command(library, source)}, or choose another --out"
                )

    def _command(self, library: Path, source: Path) -> str:
        words = ["calligram", "index", self.matcher.source, source, "--out", library]
        if self.reranker is not None and self.reranker is not self.matcher:
            words += ["--reranker", self.reranker.source]
        elif self.reranker is None and self.matcher.matcher.scoring.reranks:
            words += ["--reranker", NO_RERANKER]
        if self.localizer is not None:
            words += ["--localizer", self.localizer.source]
        return command(*words, "--rebuild")


def refuse_regions(inputs: Inputs, source: str) -> None:
    """Refuse a matcher of regions where whole pictures are scored.

    Raises:
        UserError: when the matcher's image input is regions.
    """
    if inputs.images.region_input is not None:
        raise UserError(
            f"{source} finds phrases within pictures and cannot score whole ones; give it to calligram localize, or "
            "to calligram index as --localizer together with a matcher of whole pictures"
        )


def load_encoders(
    folder: Path, manifest: Manifest, device: str | torch.device = "cpu"
) -> tuple[MatcherEncoder, MatcherEncoder | None]:
    """The encoders of the matcher and the reranker that a library names.

    Raises:
        UserError: when one is missing, or has changed since the library was indexed.
    """
    first, second = manifest.matcher, manifest.reranker
    matcher = load_recorded(folder, "matcher", first)
    reranker = None if second is None else matcher
    if second is not None and second.fingerprint != first.fingerprint:
        reranker = load_recorded(folder, "reranker", second)
    return LibraryMatchers(matcher, reranker).encoders(device)


def load_recorded(library: Path, role: str, model: MatcherRecord) -> StoredMatcher:
    """Load a matcher that a library names.

    Args:
        library: its folder.
        role: matcher, reranker or localizer.
        model: the library's record of it.

    Raises:
        UserError: when it is missing, or has changed since the library was indexed.
    """
    try:
        stored = load_matcher(model.source)
    except UserError as error:
        raise UserError(f"the {role} of {library} cannot be loaded: {error}") from error
    if stored.fingerprint != model.fingerprint:
        own: tuple[object, ...] = (model.source, "SOURCE", "--out", library)
        if role == "reranker":
            own = ("RUN", "SOURCE", "--out", library, "--reranker", model.source)
        what_to_do = "rebuild it with " + command("calligram", "index", *own, "--rebuild")
        if role == "localizer":
            what_to_do = "use the new one with " + command(
                "calligram", "index", "RUN", "SOURCE", "--out", library, "--localizer", model.source
            )
        raise UserError(
            f"{library} was indexed with {role} {model.fingerprint[:8]}, and {model.source} is now "
            f"{stored.fingerprint[:8]}; {what_to_do}"
        )
    return stored


def _recorded_reranker(library: Path, model: MatcherRecord) -> StoredMatcher:
    """The reranker that a library names; ``LibraryMatchers.check`` compares its weights."""
    try:
        return load_matcher(model.source)
    except UserError as error:
        raise UserError(
            f"the reranker of {library} cannot be loaded: {error}; say with --reranker where it is now, "
            f"drop it with --reranker {NO_RERANKER} --rebuild, or choose another --out"
        ) from error


def _has_no_reranker(known: Manifest, matcher: StoredMatcher) -> bool:
    """Whether a library of this matcher was indexed without a reranker."""
    return known.reranker is None and known.matcher.fingerprint == matcher.fingerprint


def _up_to_date(library: Path) -> Manifest:
    """The manifest; the format of an older library is updated, which needs its lock."""
    try:
        return read_manifest(library)
    except UserError:
        with lock_folder(library, "library"):
            return read_manifest(library, writing=True)


def _description(name: str, model: MatcherRecord | None) -> str:
    return f"no {name}" if model is None else f"{name} {model.source} ({model.fingerprint[:8]})"
