"""How a Milvus collection is searched: exactly, or by a graph that was seen to find what an exact search finds."""

from __future__ import annotations

from typing import Any, Literal

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


def asking(structure: Structure, k: int) -> dict[str, Any]:
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
    answers = client.search(name, queries, limit=10, output_fields=["id"], search_params=asking(structure, 10))
    return [{str(hit["id"]) for hit in hits} for hits in answers]


def rebuild(client: Any, name: str, structure: Structure) -> None:
    """Replace what a collection is searched by; it cannot be searched meanwhile."""
    client.release_collection(name)
    client.drop_index(name, client.list_indexes(name)[0])
    client.create_index(name, params(client, structure))
    client.load_collection(name)
