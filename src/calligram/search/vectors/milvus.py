"""A vector index in Milvus: a server for collections larger than one machine, or the embedded engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.extras import require
from calligram.files import replace_json
from calligram.progress import Track, silent
from calligram.search.filters.columns import checked_ids, stored_columns
from calligram.search.filters.conditions import LIKE_SUBSTITUTES, Condition, milvus_literal, substituted_name, to_milvus
from calligram.search.vectors.index import Index, VectorHit
from calligram.vectors import checked_unit_rows

Structure = Literal["FLAT", "HNSW"]

MIN_GRAPH_ROWS = 200_000
"""rows from which on an HNSW graph is built; an estimate, not measured on a server"""
MIN_GRAPH_RECALL = 0.98
"""share of the ten nearest rows that the graph must find"""
GRAPH_SEARCH_WIDTH = 512
"""parameter ef of HNSW; large, because recall matters most"""
GRAPH_PARAMETERS = {"M": 32, "efConstruction": 200}
RECALL_QUERIES = 64
"""stored vectors used as queries when the graph is compared with exact search"""
TOKEN_VARIABLE = "MILVUS_TOKEN"
"""environment variable with the token"""
MAX_ID_BYTES = 65_535
"""limit of Milvus"""
MAX_HITS = 16_384
"""limit of Milvus for one query"""
REQUEST_IDS = 500
REQUEST_NUMBERS = 16_000_000
"""numbers sent in one request; a server accepts 64 MB"""
REQUEST_QUERIES = 64


def structure_of(client: Any, name: str) -> Structure:
    """The structure that a collection is searched with."""
    index = client.describe_index(name, client.list_indexes(name)[0])
    return "HNSW" if index["index_type"] == "HNSW" else "FLAT"


def params(client: Any, structure: Structure) -> Any:
    """Parameters for building a structure."""
    found = client.prepare_index_params()
    links = GRAPH_PARAMETERS if structure == "HNSW" else {}
    found.add_index("vector", index_type=structure, index_name="vector", metric_type="COSINE", params=links)
    return found


def search_params(structure: Structure, k: int) -> dict[str, Any]:
    """Parameters of a query for k hits."""
    return {"params": {"ef": max(GRAPH_SEARCH_WIDTH, 2 * k)} if structure == "HNSW" else {}}


def build_structure(client: Any, name: str, rows: int, *, min_rows: int = MIN_GRAPH_ROWS) -> Structure:
    """Build an HNSW graph for a large collection, and keep it if its recall is high enough.

    The recall is measured once, when the graph replaces exact search. Milvus extends the graph when rows are added.
    """
    now = structure_of(client, name)
    if now == "HNSW" or rows < min_rows:
        return now
    some = client.query(name, filter="", limit=RECALL_QUERIES, output_fields=["vector"])
    queries = [row["vector"] for row in some]
    exact = nearest(client, name, queries, "FLAT")
    rebuild(client, name, "HNSW")
    found = nearest(client, name, queries, "HNSW")
    share = sum(len(a & b) for a, b in zip(exact, found, strict=True)) / sum(len(a) for a in exact)
    if share >= MIN_GRAPH_RECALL:
        return "HNSW"
    rebuild(client, name, "FLAT")
    return "FLAT"


def nearest(client: Any, name: str, queries: list[Any], structure: Structure) -> list[set[str]]:
    """The ids of the ten nearest rows of each query."""
    answers = client.search(name, queries, limit=10, output_fields=["id"], search_params=search_params(structure, 10))
    return [{str(hit["id"]) for hit in hits} for hits in answers]


def rebuild(client: Any, name: str, structure: Structure) -> None:
    """Replace the structure of a collection, which cannot be searched meanwhile."""
    client.release_collection(name)
    client.drop_index(name, client.list_indexes(name)[0])
    client.create_index(name, params(client, structure))
    client.load_collection(name)


def milvus_client() -> Any:
    """The client.

    Raises:
        UserError: when it is not installed.
    """
    return require("pymilvus", extra="milvus", purpose="milvus://")


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Turn an error of the client into one that names the address."""
    from grpc import RpcError  # type: ignore[import-untyped]

    try:
        yield
    except (milvus_client().MilvusException, RpcError) as error:
        raise UserError(f"Milvus at {address} refused: {str(error)[:300]}; is it running there?") from error


def address_of(uri: str) -> tuple[str, str]:
    """The address for the client and the token, which is in the address or in the environment."""
    parts = urlsplit(uri)
    if uri.startswith("milvus:") and not uri.startswith("milvus://"):
        return uri.removeprefix("milvus:"), ""
    if parts.path.strip("/") or parts.query or not parts.hostname:
        raise UserError(f"{uri!r} is not an address of Milvus; write milvus://host:19530, or milvus:PATH.db for a file")
    host = parts.netloc.rpartition("@")[2]
    token = unquote(parts.netloc.rpartition("@")[0]) or os.environ.get(TOKEN_VARIABLE, "")
    return ("https://" if parts.scheme == "milvuss" else "http://") + host, token


def create(client: Any, name: str, dim: int) -> None:
    """Create a collection with exact search."""
    kinds = milvus_client().DataType
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=MAX_ID_BYTES)
    schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dim)
    # Not dynamic fields: in some versions, replacing a row keeps the fields that the new row does not have.
    schema.add_field("about", kinds.JSON)
    index = params(client, "FLAT")
    client.create_collection(name, schema=schema, index_params=index, consistency_level="Strong")


class MilvusIndex:
    """A collection of ids, vectors and columns in a JSON field.

    It is read with strong consistency: a search sees all earlier writes. Milvus has no versions, so ``version`` is
    None, and ``restore`` and ``drop_versions`` do nothing. A call of ``add`` with at most ``REQUEST_NUMBERS`` numbers
    is one request and therefore atomic; a larger call is several requests.
    """

    version = None
    mapped = None
    unfinished = False

    @property
    def recall(self) -> float | None:
        """The recall that a graph had at least when it was built; None for exact search."""
        return MIN_GRAPH_RECALL if self._structure == "HNSW" else None

    def __init__(self, client: Any, name: str, address: str):
        """Use ``open``."""
        self._client, self._name, self._address = client, name, address
        with self._requests():
            fields = client.describe_collection(name)["fields"]
            self.dim = int(next(f for f in fields if f["name"] == "vector")["params"]["dim"])
            self._structure = structure_of(client, name)

    @classmethod
    def open(cls, uri: str, name: str, *, dim: int | None = None) -> MilvusIndex:
        """Open the collection ``name`` at an address; see ``tables.open_index``."""
        address, token = address_of(uri)
        with connected(address):
            client = milvus_client().MilvusClient(address, token=token)
            there = client.has_collection(name)
            if not there and dim is None:
                raise UserError(f"there is no index {name!r} at {address}; index the collection again")
            if not there:
                create(client, name, int(dim or 0))
            client.load_collection(name)
        found = cls(client, name, address)
        if dim not in (None, found.dim):
            raise UserError(f"index {name!r} at {address} holds vectors of {found.dim} dimensions, not {dim}")
        return found

    def add(self, ids: Sequence[str], vectors: NDArray[np.float32], columns: pa.Table) -> None:
        """Add items, or replace items with the same id; columns that are not given are missing."""
        given, flat = checked_ids(ids), checked_unit_rows(vectors, self.dim)
        if len(flat) != len(given):
            raise UserError(f"{len(given)} ids with {len(flat)} vectors; there must be one vector for each id")
        fields = fields_of(stored_columns(columns, len(given)), len(given))
        self._put([{"id": i, "vector": v, "about": a} for i, v, a in zip(given, flat, fields, strict=True)])

    def update(self, ids: Sequence[str], columns: pa.Table) -> None:
        """Change some columns of items."""
        given, stored = checked_ids(ids), stored_columns(columns, len(ids))
        changed = {key for name in stored.column_names for key in (name, substituted_name(name))}
        rows = self._rows(given, ["id", "vector", "about"])
        for row, new in zip(rows, fields_of(stored, len(given)), strict=True):
            row["about"] = {key: value for key, value in row["about"].items() if key not in changed} | new
        self._put(rows)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove items."""
        with self._requests():
            for chunk in chunks(ids, REQUEST_IDS):
                self._client.delete(self._name, filter=any_of(chunk))

    def search(
        self, vectors: NDArray[np.float32], k: int, where: Condition | None = None, *, exact: bool = False
    ) -> list[list[VectorHit]]:
        """The k nearest items of each query, at most 16,384."""
        if exact and self._structure != "FLAT":
            raise UserError("Milvus searches this library by a graph and not exactly; leave out exact (--exact)")
        queries = checked_unit_rows(vectors, self.dim)
        if k < 1:
            raise UserError(f"k must be at least 1, got {k}")
        parameters: dict[str, Any] = {
            "filter": to_milvus(where) if where is not None else "",
            "limit": min(k, MAX_HITS),
        }
        parameters |= {"output_fields": ["id"], "search_params": search_params(self._structure, k)}
        with self._requests():
            answers = [
                hits
                for q in chunks(queries, REQUEST_QUERIES)
                for hits in self._client.search(self._name, list(q), **parameters)
            ]
        found = [[VectorHit(str(hit["id"]), float(hit["distance"])) for hit in hits] for hits in answers]
        return [sorted(hits, key=lambda hit: (-hit.score, hit.id)) for hits in found]

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """The stored vectors in the order of ``ids``."""
        rows = self._rows(ids, ["id", "vector"])
        return np.array([row["vector"] for row in rows], np.float32).reshape(-1, self.dim)

    def __len__(self) -> int:
        with self._requests():
            return int(self._client.query(self._name, filter="", output_fields=["count(*)"])[0]["count(*)"])

    def optimize(
        self,
        track: Track = silent,
        *,
        queries: Callable[[], NDArray[np.float32]] | None = None,
        purge: bool = False,
    ) -> None:
        """Flush the collection to disk, and build a graph for a large collection."""
        with self._requests():
            for step in track(("rows", "graph"), "optimizing the index", 2):
                if step == "rows":
                    self._client.flush(self._name)
                else:
                    self._structure = build_structure(self._client, self._name, len(self))

    def restore(self, version: int | None) -> None:
        """Do nothing: Milvus has no versions."""

    def drop_versions(self, keep: int | None = None) -> None:
        """Do nothing: Milvus has no versions."""

    def _put(self, rows: Sequence[Mapping[str, Any]]) -> None:
        long = next((row["id"] for row in rows if len(row["id"].encode()) > MAX_ID_BYTES), None)
        if long is not None:
            raise UserError(f"id {long[:40]!r}... is longer than {MAX_ID_BYTES} bytes, the limit of Milvus")
        with self._requests():
            for chunk in chunks(rows, max(1, REQUEST_NUMBERS // self.dim)):
                self._client.upsert(self._name, list(chunk))

    def _rows(self, ids: Sequence[str], fields: Sequence[str]) -> list[dict[str, Any]]:
        """The stored fields of items, in the order of their ids."""
        found: dict[str, dict[str, Any]] = {}
        with self._requests():
            for chunk in chunks(ids, REQUEST_IDS):
                rows = self._client.query(self._name, filter=any_of(chunk), output_fields=list(fields))
                found |= {row["id"]: dict(row) for row in rows}
        missing = [id for id in ids if id not in found]
        if missing:
            raise UserError(f"{len(missing)} ids are not in the index, the first is {missing[0]!r}")
        return [found[id] for id in ids]

    def _requests(self) -> Any:
        return connected(self._address)


class PendingChanges:
    """A journal of changes to an index without versions, so that they can be undone after a kill.

    Vectors are added before the commit of the library and removed after it. After a kill, ids of the journal that the
    library does not have are removed from the index.

    Args:
        file: of the journal, in the library's folder.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._later: list[str] = []

    def note(self, ids: Sequence[str]) -> None:
        """Write to the journal which ids are about to change."""
        if ids:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_json(self._file, sorted({*self._noted(), *ids}))

    def _noted(self) -> list[str]:
        found: list[str] = json.loads(self._file.read_text(encoding="utf-8")) if self._file.is_file() else []
        return found

    def remove(self, index: Index, ids: Sequence[str]) -> None:
        """Remove items from the index after the commit."""
        self.note(ids)
        self._later += ids

    def done(self, index: Index) -> None:
        """Finish the removals and delete the journal; called after the commit."""
        if self._later:
            index.remove(self._later)
        self._later = []
        self._file.unlink(missing_ok=True)

    def undo(self, index: Index, present: Callable[[Sequence[str]], set[str]]) -> None:
        """Remove the vectors that a run added before it was killed."""
        if noted := self._noted():
            index.remove(sorted(set(noted) - present(noted)))
            self._file.unlink()


def fields_of(columns: pa.Table, rows: int) -> list[dict[str, Any]]:
    """The JSON field of each row; missing values have no key."""
    if not columns.num_columns:
        return [{} for _ in range(rows)]
    found = [{name: value for name, value in row.items() if value is not None} for row in columns.to_pylist()]
    for row in found:
        texts = [
            (name, value, value.translate(LIKE_SUBSTITUTES)) for name, value in row.items() if isinstance(value, str)
        ]
        row |= {substituted_name(name): second for name, text, second in texts if second != text}
    return found


def any_of(ids: Sequence[str]) -> str:
    """A condition for these ids. The client's own function does not escape quotes."""
    return f"id in [{', '.join(milvus_literal(id) for id in ids)}]"


def chunks(items: Any, size: int) -> Iterator[Any]:
    """A sequence in parts."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
