"""Reaching Milvus, and making a collection there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from calligram.errors import UserError
from calligram.search.milvus_graph import params

TOKEN = "MILVUS_TOKEN"
"""environment variable that holds the token"""
LONGEST_ID = 65_535
"""bytes, the most that Milvus stores"""


def milvus() -> Any:
    """The client.

    Raises:
        UserError: when it is not installed.
    """
    try:
        import pymilvus
    except ImportError as error:
        raise UserError('milvus:// needs pymilvus; install it with pip install "calligram[milvus]"') from error
    return pymilvus


@contextmanager
def asking(address: str) -> Iterator[None]:
    """Say where Milvus is when it does not answer as it should."""
    from grpc import RpcError  # type: ignore[import-untyped]

    try:
        yield
    except (milvus().MilvusException, RpcError) as error:
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
    kinds = milvus().DataType
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=LONGEST_ID)
    schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dim)
    # Not dynamic fields: replacing a row leaves those that the new one does not have, in some versions.
    schema.add_field("about", kinds.JSON)
    index = params(client, "FLAT")
    client.create_collection(name, schema=schema, index_params=index, consistency_level="Strong")
