"""The two indexes of a library: in its own folder, or with an engine elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from calligram.files import replace_json
from calligram.search.library.manifest import Manifest
from calligram.search.library.tables import Tables
from calligram.search.vectors.index import Index

# Which engine keeps an index, by its address.


def open_index(uri: str | Path, name: str, *, dim: int | None = None, version: int | None = None) -> Index:
    """Open an index, or make one.

    Args:
        uri: a folder (Lance); ``milvus://[token@]host:port``, ``milvuss://`` over TLS, or ``milvus:PATH`` (embedded).
        name: of the index among others at the same place: letters, digits and ``_``.
        dim: make the index when it is not there; checked when it is.
        version: open it for reading, as it was at this version; engines without versions ignore it.

    Raises:
        UserError: when it is not there and no ``dim`` is given, has another dimension, or the engine is not installed.
    """
    if str(uri).startswith("milvus:") or str(uri).startswith("milvuss:"):
        from calligram.search.vectors.milvus import MilvusIndex

        return MilvusIndex.open(str(uri), name, dim=dim)
    from calligram.search.vectors.lance import LanceIndex

    return LanceIndex.open(Path(uri), name, dim=dim, version=version)


INDEXES = ("index.images", "index.captions")
"""what the manifest calls the versions of the index of images and that of captions"""


def open_indexes(inside: Path, manifest: Manifest, *, writing: bool = False) -> tuple[Index, Index]:
    """The index of images and that of captions; for reading as the manifest has them.

    Args:
        inside: folder of the library's generation.
        manifest: what counts.
        writing: open them for writing, without what was written after the manifest.
    """
    images, captions = (_open(inside, manifest, name, writing) for name in INDEXES)
    return images, captions


def _open(inside: Path, manifest: Manifest, name: str, writing: bool) -> Index:
    version = manifest.versions.get(name)
    # An engine elsewhere may hold several libraries, and two generations of one.
    short = name.removeprefix("index.")
    label = short if manifest.index is None else f"calligram_{manifest.label}_{manifest.generation}_{short}"
    place = manifest.index or inside / "index"
    if not writing:
        return open_index(place, label, version=version)
    index = open_index(place, label, dim=manifest.dim)
    if version is not None and index.version != version:
        index.restore(version)
    return index


def empty_indexes(inside: Path, manifest: Manifest) -> None:
    """Take a library's vectors out of an engine elsewhere; those in its own folder go with the folder."""
    if manifest.index is None or not manifest.versions:
        return
    tables = Tables.open(inside / "tables", manifest.versions)
    images, captions = open_indexes(inside, manifest, writing=True)
    for name, index in (("items", images), ("captions", captions)):
        for batch in tables.column(name, ("id",)):
            index.remove(batch.column("id").to_pylist())


class PendingChanges:
    """Changes to an index whose engine keeps no versions, noted so that they can be undone after a kill.

    With an engine that keeps versions there is nothing to do: the manifest names the one that counts. Without, vectors
    are added before the commit and removed after it; ids noted here that the items table does not have are removed.
    """

    def __init__(self, inside: Path, manifest: Manifest) -> None:
        self._file = inside / "pending.json"
        self._needed = manifest.index is not None
        self._later: list[str] = []

    def note(self, ids: Sequence[str]) -> None:
        """Say what is about to be changed."""
        if self._needed and ids:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_json(self._file, sorted({*self._noted(), *ids}))

    def _noted(self) -> list[str]:
        found: list[str] = json.loads(self._file.read_text(encoding="utf-8")) if self._file.is_file() else []
        return found

    def remove(self, index: Index, ids: Sequence[str]) -> None:
        """Take items out of an index, now or when the commit is done."""
        if self._needed:
            self.note(ids)
            self._later += ids
        else:
            index.remove(ids)

    def done(self, index: Index) -> None:
        """The commit is done."""
        if self._needed:
            if self._later:
                index.remove(self._later)
            self._later = []
            self._file.unlink(missing_ok=True)

    def undo(self, index: Index, present: Callable[[Sequence[str]], set[str]]) -> None:
        """Remove what was added by a run that did not come to its commit."""
        noted = self._noted() if self._needed else []
        if noted:
            index.remove(sorted(set(noted) - present(noted)))
            self._file.unlink()
