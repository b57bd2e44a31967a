"""The manifest of a library, ``library.json``: replacing it atomically is the commit."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from calligram import records
from calligram.errors import STAGING, UserError, wrong_folder
from calligram.files import LOCK_FILE, replace_json
from calligram.records import check_object, integer, map_of, optional, read_object, record, text
from calligram.search.filters.columns import ColumnKind

FORMAT = "calligram-library"
VERSION = 1
MANIFEST = "library.json"
REBUILT = "rebuilt.json"
"""the manifest of a library that is being rebuilt; it replaces the other one at the end"""
REBUILD = "index again with --rebuild"

MIGRATIONS: Mapping[int, Callable[[Path, dict[str, Any]], dict[str, Any]]] = {}
"""by version: a function of the library's folder and manifest that returns the manifest of the next version"""


@dataclass(frozen=True)
class MatcherRecord:
    """A matcher, reranker or localizer of the library."""

    fingerprint: str
    source: str


@dataclass(frozen=True)
class SourceRecord:
    """A source of pictures."""

    number: int
    root: str
    kind: Literal["folder", "collection"]


@dataclass(frozen=True)
class Manifest:
    """The state of a library. It names the version of each table, so that all tables change together."""

    matcher: MatcherRecord
    dim: int
    reranker: MatcherRecord | None = None
    localizer: MatcherRecord | None = None
    sources: tuple[SourceRecord, ...] = ()
    kinds: Mapping[str, ColumnKind] = field(default_factory=dict)
    """columns for conditions"""
    generation: int = 1
    """number of the folder that holds the tables; a rebuilt library has the next"""
    index: str | None = None
    """address of the vector engine; None for Lance in the library's own folder"""
    label: str = ""
    """distinguishes this library from others on the same server"""
    versions: Mapping[str, int] = field(default_factory=dict)
    """of each table"""
    earlier: tuple[tuple[float, Mapping[str, int]], ...] = ()
    """earlier versions with the time until which they are kept, for readers that have them open"""
    counts: Mapping[str, int] = field(default_factory=dict)
    precisions: tuple[str, ...] = ()
    """of the networks that have encoded pictures: ``fp32``, ``bf16`` or both; empty for a new library"""
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """checksums of the files of each table, by its folder within that of the generation; see ``checksums``"""
    mapped: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """mapped files of each large vector index, by the name of the index; see ``vectors.mapped``"""
    scales: Mapping[str, Any] | None = None
    """score scales and cut-offs, and the state of the library that they were measured for; see ``query.cutoff``"""

    def lines(self) -> list[str]:
        """What the library contains, for people."""
        found = [
            ", ".join(f"{self.counts.get(name, 0):,} {name}" for name in ("items", "captions", "gone", "problems")),
            f"matcher: {self.matcher.source}, {self.dim} dimensions",
            *([f"reranker: {self.reranker.source}"] if self.reranker else []),
            *([f"localizer: {self.localizer.source}"] if self.localizer else []),
            *([f"pictures encoded in {' and '.join(self.precisions)}"] if self.precisions else []),
            *(f"source: {source.root}" for source in self.sources),
            "columns for --where: " + ", ".join(f"{name} ({kind})" for name, kind in sorted(self.kinds.items())),
        ]
        for name, about in self.mapped.items():
            if about.get("recall") is not None:
                share = f"finds {100 * about['recall']:.1f}% of the ten nearest"
                limit = f"indexed above {about['limit']:,} rows"
                found.append(f"search of {name.removeprefix('index.')}: approximate ({limit}), {share}")
        return found

    def source_at(self, root: Path) -> SourceRecord | None:
        """The source at this folder, or None."""
        return next((s for s in self.sources if s.root == str(root)), None)

    def with_source(self, root: Path, kind: Literal["folder", "collection"]) -> tuple[Manifest, SourceRecord]:
        """The source at this folder, and the manifest with it."""
        known = self.source_at(root)
        if known is not None and known.kind == kind:
            return self, known
        source = SourceRecord(known.number if known else len(self.sources), str(root), kind)
        rest = tuple(s for s in self.sources if s.number != source.number)
        return replace(self, sources=tuple(sorted((*rest, source), key=lambda s: s.number))), source

    def with_precisions(self, found: Iterable[str]) -> Manifest:
        """The manifest with further precisions of networks."""
        return replace(self, precisions=tuple(sorted({*self.precisions, *found})))


_matcher = record({"fingerprint": text(), "source": text()})
MANIFEST_SCHEMA = record(
    {
        **{"format": text(), "version": integer(0), "matcher": _matcher, "dim": integer(1, 1_000_000)},
        **{"reranker": optional(_matcher), "localizer": optional(_matcher), "index": optional(text())},
        "sources": records.list_of(
            record({"number": integer(0, 1_000_000), "root": text(), "kind": records.choice("folder", "collection")})
        ),
        "kinds": map_of(records.choice("text", "number", "flag")),
        **{"generation": integer(1), "label": text(), "versions": map_of(integer(1)), "counts": map_of(integer(0))},
        "earlier": records.list_of(records.tuple_of(records.number, map_of(integer(1)))),
    },
    {
        "files": map_of(map_of(text("[0-9a-f]{8} [0-9]+", "a checksum and a size"))),
        "precisions": records.list_of(records.choice("bf16", "fp32")),
        **{"mapped": optional(map_of(map_of(records.anything))), "scales": records.anything},
    },
)
"""of ``library.json``"""


def read_manifest(folder: Path, name: str = MANIFEST, *, writing: bool = False) -> Manifest:
    """Read the manifest of a library.

    Args:
        folder: of the library.
        name: of the manifest's file.
        writing: update the format of an older library, whose lock the caller holds; without it, an older format is an
            error.

    Raises:
        UserError: when there is no library, or its manifest is damaged or has another version.
    """
    file = folder / name
    try:
        content = read_object(file, REBUILD)
    except (FileNotFoundError, NotADirectoryError):
        raise wrong_folder(folder, "library") from None
    if content.get("format") != FORMAT:
        raise UserError(f"{file} does not describe a {FORMAT}")
    check_object(file, content, record({"version": integer(0)}, closed=False), REBUILD)
    version = content["version"]
    if version > VERSION:
        raise UserError(f"{folder} has library version {version}, this calligram reads up to {VERSION}; upgrade it")
    if version < VERSION:
        content = _migrated(folder, content, version, writing)
    check_object(file, content, MANIFEST_SCHEMA, REBUILD)
    manifest = _from_json(content)
    if version < VERSION:
        write_manifest(folder, manifest, name)
    return manifest


def refuse_other_folder(out: Path) -> None:
    """Refuse a folder that contains something other than a library, before anything is written there."""
    if not out.exists() or (out / MANIFEST).is_file():
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file; --out takes the folder of a library")
    ours = {LOCK_FILE, STAGING, MANIFEST, REBUILT, f".{MANIFEST}.partial"}
    others = [p.name for p in out.iterdir() if p.name not in ours and not re.fullmatch(r"\d+", p.name)]
    if others:
        raise UserError(f"{out} exists and is not a library (it has {others[0]}); choose another --out")


def check_address(folder: Path, manifest: Manifest, given: str | None) -> None:
    """Refuse vectors at an address that the user has not named: a library may come from somebody else.

    Args:
        folder: of the library.
        manifest: of the library.
        given: the address that the user has named.

    Raises:
        UserError: when the manifest names another address.
    """
    if manifest.index is not None and not same_address(manifest.index, given):
        address = _without_token(manifest.index)
        raise UserError(
            f"the vectors of {folder} are at {address}, outside its folder; if you trust this address, add "
            f"--index {shlex.quote(address)} (in Python: index={address!r})"
        )


def same_address(one: str | None, two: str | None) -> bool:
    """Whether two addresses of vectors are the same, apart from their tokens."""
    return _without_token(one or "") == _without_token(two or "")


def _without_token(address: str) -> str:
    return re.sub("(?<=://)[^/]*@", "", address)


def _migrated(folder: Path, content: dict[str, Any], version: int, writing: bool) -> dict[str, Any]:
    if not writing:
        raise UserError(
            f'{folder} has library version {version}, older than {VERSION}; "calligram index" brings it up to date'
        )
    for older in range(version, VERSION):
        if older not in MIGRATIONS:
            raise UserError(
                f"{folder} has library version {older}, which cannot be brought up to {VERSION}: --rebuild it"
            )
        content = {**MIGRATIONS[older](folder, content), "version": older + 1}
    return content


def write_manifest(folder: Path, manifest: Manifest, name: str = MANIFEST) -> None:
    """Replace the manifest atomically, which is the commit."""
    replace_json(folder / name, {"format": FORMAT, "version": VERSION, **asdict(manifest)}, indent=1)


def _from_json(content: Mapping[str, Any]) -> Manifest:
    models = {
        key: MatcherRecord(**content[key]) if content[key] else None for key in ("matcher", "reranker", "localizer")
    }
    return Manifest(
        **models,  # type: ignore[arg-type]
        dim=int(content["dim"]),
        sources=tuple(SourceRecord(**source) for source in content["sources"]),
        kinds=dict(content["kinds"]),
        generation=int(content["generation"]),
        index=content["index"],
        label=str(content["label"]),
        versions={str(k): int(v) for k, v in content["versions"].items()},
        earlier=tuple((float(until), dict(versions)) for until, versions in content["earlier"]),
        counts=dict(content["counts"]),
        precisions=tuple(content.get("precisions", ("fp32",) if content["versions"] else ())),
        files=dict(content.get("files", {})),
        mapped={str(name): dict(record) for name, record in (content.get("mapped") or {}).items()},
        scales=content["scales"] if isinstance(content.get("scales"), dict) else None,
    )
