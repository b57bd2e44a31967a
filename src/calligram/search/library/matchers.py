"""The matchers of an indexing run, and the check that a library was indexed with the same ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from calligram.errors import UserError, command
from calligram.features.inputs import Inputs
from calligram.files import lock_folder
from calligram.models.catalog import StoredMatcher, load_matcher
from calligram.search.library.manifest import MANIFEST, Manifest, MatcherRecord, read_manifest

PathLike = str | os.PathLike[str]
NO_RERANKER = "none"
"""in place of a reranker: hits stay in the order of the vectors, also for a matcher that could re-rank"""


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
            if second.fingerprint == first.fingerprint and not second.matcher.reranks:
                raise UserError(
                    f"{reranker} scores by the cosine of its vectors, which orders the candidates already; "
                    "leave out --reranker, or give a run that scores pairs, such as scan, bfan or mmca"
                )
        else:
            second = first if first.matcher.reranks else None
        for one in filter(None, (first, second)):
            refuse_regions(one.inputs, one.source)
        third = load_matcher(localizer) if localizer is not None else None
        if third is not None:
            from calligram.search.explain.localize import require_region_input

            require_region_input(third.inputs)
        return cls(first, second, third)

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
        elif self.reranker is None and self.matcher.matcher.reranks:
            words += ["--reranker", NO_RERANKER]
        if self.localizer is not None:
            words += ["--localizer", self.localizer.source]
        return command(*words, "--rebuild")


def refuse_regions(inputs: Inputs, source: str) -> None:
    """Refuse a matcher of regions where whole pictures are scored.

    Raises:
        UserError: when the matcher's image input is regions.
    """
    if inputs.images.kind == "regions":
        raise UserError(
            f"{source} finds phrases within pictures and cannot score whole ones; give it to calligram localize, or "
            "to calligram index as --localizer together with a matcher of whole pictures"
        )


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
