"""An index kept by Milvus: a server for collections past one machine, or the embedded engine with the same client."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.extras import require
from calligram.progress import Track, silent
from calligram.search.filters.columns import checked_ids, checked_vectors, stored_columns
from calligram.search.filters.conditions import STAND_INS, Condition, milvus_literal, second_name, to_milvus
from calligram.search.vectors.index import VectorHit

# How a Milvus collection is searched: exactly, or by a graph that was seen to find what an exact search finds.

Structure = Literal["FLAT", "HNSW"]

PAYS = 200_000
"""rows from which a graph is tried; a guess, since no server was at hand to measure on"""
RECALL = 0.98
"""of the ten nearest, the least share that the graph must find"""
WIDTH = 512
"""of the search in the graph, wide since recall comes first"""
LINKS = {"M": 32, "efConstruction": 200}
SAMPLE = 64
"""stored vectors that serve as queries when the graph is compared with the exact search"""


def structure_of(client: Any, name: str) -> Structure:
    """What a collection is searched by now."""
    index = client.describe_index(name, client.list_indexes(name)[0])
    return "HNSW" if index["index_type"] == "HNSW" else "FLAT"


def params(client: Any, structure: Structure) -> Any:
    """What Milvus is asked to build."""
    found = client.prepare_index_params()
    links = LINKS if structure == "HNSW" else {}
    found.add_index("vector", index_type=structure, index_name="vector", metric_type="COSINE", params=links)
    return found


def search_params(structure: Structure, k: int) -> dict[str, Any]:
    """What goes with a query; a graph is searched wider than there are answers."""
    return {"params": {"ef": max(WIDTH, 2 * k)} if structure == "HNSW" else {}}


def settled(client: Any, name: str, rows: int, *, pays: int = PAYS) -> Structure:
    """Build the graph when a collection has grown to where it pays, and keep it if it finds enough.

    It is compared once, before the exact search is given up; Milvus extends it by itself when rows come later.
    """
    now = structure_of(client, name)
    if now == "HNSW" or rows < pays:
        return now
    some = client.query(name, filter="", limit=SAMPLE, output_fields=["vector"])
    queries = [row["vector"] for row in some]
    exact = nearest(client, name, queries, "FLAT")
    rebuild(client, name, "HNSW")
    found = nearest(client, name, queries, "HNSW")
    share = sum(len(a & b) for a, b in zip(exact, found, strict=True)) / sum(len(a) for a in exact)
    if share >= RECALL:
        return "HNSW"
    rebuild(client, name, "FLAT")
    return "FLAT"


def nearest(client: Any, name: str, queries: list[Any], structure: Structure) -> list[set[str]]:
    """The ids of the ten nearest of each query."""
    answers = client.search(name, queries, limit=10, output_fields=["id"], search_params=search_params(structure, 10))
    return [{str(hit["id"]) for hit in hits} for hits in answers]


def rebuild(client: Any, name: str, structure: Structure) -> None:
    """Replace what a collection is searched by; it cannot be searched meanwhile."""
    client.release_collection(name)
    client.drop_index(name, client.list_indexes(name)[0])
    client.create_index(name, params(client, structure))
    client.load_collection(name)


# Reaching Milvus, and making a collection there.

TOKEN = "MILVUS_TOKEN"
"""environment variable that holds the token"""
LONGEST_ID = 65_535
"""bytes, the most that Milvus stores"""


def milvus_client() -> Any:
    """The client.

    Raises:
        UserError: when it is not installed.
    """
    return require("pymilvus", extra="milvus", purpose="milvus://")


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Say where Milvus is when it does not answer as it should."""
    from grpc import RpcError  # type: ignore[import-untyped]

    try:
        yield
    except (milvus_client().MilvusException, RpcError) as error:
        raise UserError(f"Milvus at {address} refused: {str(error)[:300]}; is it running there?") from error


def address_of(uri: str) -> tuple[str, str]:
    """Where the client connects to, and the token: from the address, or from the environment."""
    parts = urlsplit(uri)
    if uri.startswith("milvus:") and not uri.startswith("milvus://"):
        return uri.removeprefix("milvus:"), ""
    if parts.path.strip("/") or parts.query or not parts.hostname:
        raise UserError(f"{uri!r} is no address of Milvus; write milvus://host:19530, or milvus:PATH.db for a file")
    host = parts.netloc.rpartition("@")[2]
    token = unquote(parts.netloc.rpartition("@")[0]) or os.environ.get(TOKEN, "")
    return ("https://" if parts.scheme == "milvuss" else "http://") + host, token


def create(client: Any, name: str, dim: int) -> None:
    """Make a collection whose search is exact."""
    kinds = milvus_client().DataType
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=LONGEST_ID)
    schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dim)
    # Not dynamic fields: replacing a row leaves those that the new one does not have, in some versions.
    schema.add_field("about", kinds.JSON)
    index = params(client, "FLAT")
    client.create_collection(name, schema=schema, index_params=index, consistency_level="Strong")


MOST = 16_384
"""answers to a query, the most that Milvus gives"""
NAMED = 500
"""ids in one request"""
AT_ONCE = 16_000_000
"""numbers sent in one request; a server takes 64 MB"""


class MilvusIndex:
    """A collection of ids, vectors and columns in a JSON field.

    It is read with strong consistency: a search sees what was written. Milvus keeps no versions to go back to:
    ``version`` is None, ``restore`` and ``clean`` do nothing. A call of ``add`` with up to ``AT_ONCE`` numbers is one
    request, and whole or not at all; a larger one goes in several.
    """

    version = None

    def __init__(self, client: Any, name: str, address: str):
        """Use ``open``."""
        self._client, self._name, self._address = client, name, address
        with self._asking():
            fields = client.describe_collection(name)["fields"]
            self.dim = int(next(f for f in fields if f["name"] == "vector")["params"]["dim"])
            self._structure = structure_of(client, name)

    @classmethod
    def open(cls, uri: str, name: str, *, dim: int | None = None) -> MilvusIndex:
        """Open the collection ``name`` at an address; see ``choosing.open_index``."""
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
        """Add items or replace them whole; columns that are not given are missing."""
        given, flat = checked_ids(ids), checked_vectors(vectors, self.dim)
        if len(flat) != len(given):
            raise UserError(f"{len(given)} ids with {len(flat)} vectors; there must be one vector for each id")
        fields = fields_of(stored_columns(columns, len(given)), len(given))
        self._put([{"id": i, "vector": v, "about": a} for i, v, a in zip(given, flat, fields, strict=True)])

    def update(self, ids: Sequence[str], columns: pa.Table) -> None:
        """Give items other values in some columns."""
        given, stored = checked_ids(ids), stored_columns(columns, len(ids))
        changed = {key for name in stored.column_names for key in (name, second_name(name))}
        rows = self._rows(given, ["id", "vector", "about"])
        for row, new in zip(rows, fields_of(stored, len(given)), strict=True):
            row["about"] = {key: value for key, value in row["about"].items() if key not in changed} | new
        self._put(rows)

    def remove(self, ids: Sequence[str]) -> None:
        """Take items out."""
        with self._asking():
            for chunk in chunks(ids, NAMED):
                self._client.delete(self._name, filter=any_of(chunk))

    def search(self, vectors: NDArray[np.float32], k: int, where: Condition | None = None) -> list[list[VectorHit]]:
        """The k nearest items of each query, at most 16,384."""
        queries = checked_vectors(vectors, self.dim)
        if k < 1:
            raise UserError(f"k must be at least 1, got {k}")
        asked: dict[str, Any] = {"filter": to_milvus(where) if where is not None else "", "limit": min(k, MOST)}
        asked |= {"output_fields": ["id"], "search_params": search_params(self._structure, k)}
        with self._asking():
            answers = [hits for q in chunks(queries, 64) for hits in self._client.search(self._name, list(q), **asked)]
        return [[VectorHit(str(hit["id"]), float(hit["distance"])) for hit in hits] for hits in answers]

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """The stored vectors in the order of ``ids``."""
        rows = self._rows(ids, ["id", "vector"])
        return np.array([row["vector"] for row in rows], np.float32).reshape(-1, self.dim)

    def __len__(self) -> int:
        with self._asking():
            return int(self._client.query(self._name, filter="", output_fields=["count(*)"])[0]["count(*)"])

    def optimize(self, track: Track = silent) -> None:
        """Write out what is in memory, and search by a graph where it pays and finds what an exact search finds."""
        with self._asking():
            for step in track(("rows", "graph"), "settling the index", 2):
                if step == "rows":
                    self._client.flush(self._name)
                else:
                    self._structure = settled(self._client, self._name, len(self))

    def restore(self, version: int | None) -> None:
        """Do nothing: there are no versions."""

    def drop_versions(self, keep: int | None = None) -> None:
        """Do nothing: there are no versions."""

    def _put(self, rows: Sequence[Mapping[str, Any]]) -> None:
        long = next((row["id"] for row in rows if len(row["id"].encode()) > LONGEST_ID), None)
        if long is not None:
            raise UserError(f"id {long[:40]!r}... is longer than {LONGEST_ID} bytes, the most that Milvus stores")
        with self._asking():
            for chunk in chunks(rows, max(1, AT_ONCE // self.dim)):
                self._client.upsert(self._name, list(chunk))

    def _rows(self, ids: Sequence[str], fields: Sequence[str]) -> list[dict[str, Any]]:
        """The stored fields of items, in the order of their ids."""
        found: dict[str, dict[str, Any]] = {}
        with self._asking():
            for chunk in chunks(ids, NAMED):
                rows = self._client.query(self._name, filter=any_of(chunk), output_fields=list(fields))
                found |= {row["id"]: dict(row) for row in rows}
        lacking = [id for id in ids if id not in found]
        if lacking:
            raise UserError(f"{len(lacking)} ids are not in the index, the first is {lacking[0]!r}")
        return [found[id] for id in ids]

    def _asking(self) -> Any:
        return connected(self._address)


def fields_of(columns: pa.Table, rows: int) -> list[dict[str, Any]]:
    """What the JSON field of each row holds; missing values have no key."""
    if not columns.num_columns:
        return [{} for _ in range(rows)]
    found = [{name: value for name, value in row.items() if value is not None} for row in columns.to_pylist()]
    for row in found:
        texts = [(name, value, value.translate(STAND_INS)) for name, value in row.items() if isinstance(value, str)]
        row |= {second_name(name): second for name, text, second in texts if second != text}
    return found


def any_of(ids: Sequence[str]) -> str:
    """A condition for these ids. Not the client's own: it writes them between quotes as they are."""
    return f"id in [{', '.join(milvus_literal(id) for id in ids)}]"


def chunks(items: Any, size: int) -> Iterator[Any]:
    """A sequence in pieces."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
