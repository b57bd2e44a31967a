"""The matchers a library works with, and whether they are those it was made with."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from calligram.errors import UserError, command
from calligram.features.inputs import Inputs
from calligram.files import lock_folder
from calligram.models.load import StoredMatcher, load_matcher
from calligram.search.library.manifest import MANIFEST, Manifest, MatcherRecord, read_manifest

PathLike = str | os.PathLike[str]
NONE = "none"
"""in place of a reranker: vectors alone decide, also those of a matcher that could re-rank"""


@dataclass(frozen=True)
class LibraryMatchers:
    """A matcher for the first stage, one that re-ranks, and one that finds phrases in pictures."""

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
        """Load them; what is not given is taken from the library where it has one.

        A matcher whose score needs both sides re-ranks what its own vectors find, but where the reranker is ``NONE``.

        Raises:
            UserError: when one cannot be loaded, or sees regions where whole pictures are wanted, or the reverse, or
                would put in order again what it has put in order.
        """
        first = load_matcher(matcher)
        known = None
        if library is not None and (library / MANIFEST).is_file():
            known = _up_to_date(library)
        if reranker is None and known is not None and known.reranker not in (None, known.matcher):
            assert library is not None
            assert known.reranker is not None
            second: StoredMatcher | None = _recorded_reranker(library, known.reranker)
        elif reranker == NONE or (reranker is None and known is not None and _left_out(known, first)):
            second = None
        elif reranker is not None:
            second = load_matcher(reranker)
            if second.fingerprint == first.fingerprint and not second.matcher.reranks:
                raise UserError(
                    f"{reranker} scores by the cosine of its vectors, which puts candidates in order already; "
                    "leave out --reranker, or give a run that compares pairs, such as scan, bfan or mmca"
                )
        else:
            second = first if first.matcher.reranks else None
        for one in filter(None, (first, second)):
            refuse_regions(one.inputs, one.source)
        third = load_matcher(localizer) if localizer is not None else None
        if third is not None:
            from calligram.search.explain.localize import region_side

            region_side(third.inputs)
        return cls(first, second, third)

    def named(self) -> dict[str, MatcherRecord | None]:
        """As a manifest has them."""
        stored = {"matcher": self.matcher, "reranker": self.reranker, "localizer": self.localizer}
        return {name: MatcherRecord(s.fingerprint, s.source) if s is not None else None for name, s in stored.items()}

    def made(self, library: Path) -> bool:
        """Whether a library was made with these."""
        try:
            manifest = read_manifest(library)
        except UserError:
            return False
        return not any(self._other(manifest, name) for name in self.named())

    def _other(self, manifest: Manifest, name: str) -> bool:
        model, before = self.named()[name], getattr(manifest, name)
        if name == "localizer":  # nothing that is stored depends on it
            return False
        return bool((before and before.fingerprint) != (model and model.fingerprint))

    def check(self, manifest: Manifest, library: Path, source: Path) -> None:
        """Refuse a library that was made with others, with the command that makes it anew."""
        for name, model in self.named().items():
            if self._other(manifest, name):
                before = _called(name, getattr(manifest, name))
                raise UserError(
                    f"{library} was made with {before}, this is {_called(name, model)}: "
                    f"what is stored cannot be compared; rebuild it with "
                    f"{self._command(library, source)}, or choose another --out"
                )

    def _command(self, library: Path, source: Path) -> str:
        words = ["calligram", "index", self.matcher.source, source, "--out", library]
        if self.reranker is not None and self.reranker is not self.matcher:
            words += ["--reranker", self.reranker.source]
        elif self.reranker is None and self.matcher.matcher.reranks:
            words += ["--reranker", NONE]
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


def load_recorded(library: Path, role: str, model: MatcherRecord) -> StoredMatcher:
    """A matcher that a library names.

    Raises:
        UserError: when it is not there, or not what it was.
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
            what_to_do = "take it with " + command(
                "calligram", "index", "RUN", "SOURCE", "--out", library, "--localizer", model.source
            )
        raise UserError(
            f"{library} was indexed with {role} {model.fingerprint[:8]}, and {model.source} is now "
            f"{stored.fingerprint[:8]}; {what_to_do}"
        )
    return stored


def _recorded_reranker(library: Path, model: MatcherRecord) -> StoredMatcher:
    """The reranker that a library names, whatever its weights are now: ``Models.check`` compares them."""
    try:
        return load_matcher(model.source)
    except UserError as error:
        raise UserError(
            f"the reranker of {library} cannot be loaded: {error}; say with --reranker where it is now, "
            f"drop it with --reranker {NONE} --rebuild, or choose another --out"
        ) from error


def _left_out(known: Manifest, matcher: StoredMatcher) -> bool:
    """Whether a library of this matcher was made without a reranker."""
    return known.reranker is None and known.matcher.fingerprint == matcher.fingerprint


def _up_to_date(library: Path) -> Manifest:
    """The manifest; an older library is brought up to date, for which nobody else may be writing."""
    try:
        return read_manifest(library)
    except UserError:
        with lock_folder(library, "library"):
            return read_manifest(library, writing=True)


def _called(name: str, model: MatcherRecord | None) -> str:
    return f"no {name}" if model is None else f"{name} {model.source} ({model.fingerprint[:8]})"
