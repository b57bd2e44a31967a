"""Which engine keeps an index, by its address."""

from __future__ import annotations

from pathlib import Path

from calligram.search.index import Index


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
        from calligram.search.milvus_index import MilvusIndex

        return MilvusIndex.open(str(uri), name, dim=dim)
    from calligram.search.lance_index import LanceIndex

    return LanceIndex.open(Path(uri), name, dim=dim, version=version)
