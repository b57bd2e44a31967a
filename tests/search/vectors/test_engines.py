"""What only Lance does, and what only Milvus does."""

from __future__ import annotations

import re
import sys

import numpy as np
import pyarrow as pa
import pytest

from calligram.errors import UserError
from calligram.extras import install_command
from calligram.search.filters.conditions import Comparison
from calligram.search.library.tables import open_index
from calligram.search.vectors import milvus
from calligram.search.vectors.milvus import address_of

DIM = 7
NOTHING = pa.table({})


def test_lance_reads_at_a_version_and_restores_it(tmp_path, some, ids):
    index = open_index(tmp_path, "images", dim=DIM)
    index.add(["a", "b"], some(2), pa.table({"year": [2020, 2021]}))
    pinned = index.version
    index.add(["c"], some(1), pa.table({"camera": ["x"]}))
    index.remove(["a"])
    old = open_index(tmp_path, "images", version=pinned)
    assert sorted(ids(old.search(some(1), 9)[0])) == ["a", "b"]
    assert ids(old.search(some(1), 9, Comparison("year", "=", 2021.0))[0]) == ["b"]
    with pytest.raises(UserError, match=f"opened for reading at version {pinned}"):
        old.remove(["b"])
    index.restore(pinned)
    assert sorted(ids(index.search(some(1), 9)[0])) == ["a", "b"]
    index.add(["d"], some(1), NOTHING)
    assert len(index) == 3
    with pytest.raises(UserError, match="no index 'images' at version 999"):
        open_index(tmp_path, "images", version=999)


def test_a_search_that_began_before_a_write_answers_from_what_it_read(tmp_path, some, names, ids):
    index = open_index(tmp_path, "images", dim=DIM)
    index.add(names(20), some(20), pa.table({"n": range(20)}))
    read = index._read()
    index.remove(names(19))
    index.optimize()
    found = read.search(np.ones((1, DIM), np.float32), 99, Comparison("n", "<", 5.0))[0]
    assert sorted(ids(found)) == names(5)


def test_cleaning_bounds_the_folder_and_keeps_the_version_that_is_named(tmp_path, some, names):
    index = open_index(tmp_path, "images", dim=DIM)
    index.add(names(2000), some(2000), pa.table({"n": range(2000)}))
    index.optimize()
    index.drop_versions()
    sizes = []
    for turn in range(4):
        pinned = index.version
        for part in range(3):
            index.add(names(2000), some(2000, seed=turn), pa.table({"n": [part] * 2000}))
        index.optimize()
        index.drop_versions(keep=pinned)
        assert len(open_index(tmp_path, "images", version=pinned).search(some(1), 5)[0]) == 5
        index.drop_versions()
        sizes.append(sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()))
    assert sizes[-1] <= sizes[0] * 1.1
    assert len(index) == 2000


def test_a_column_does_not_change_its_kind(tmp_path, some):
    index = open_index(tmp_path, "images", dim=DIM)
    index.add(["a"], some(1), pa.table({"year": [2020]}))
    with pytest.raises(UserError, match="column 'year' holds double in the index, not string"):
        index.add(["b"], some(1), pa.table({"year": ["2020"]}))
    index.add(["b"], some(1), pa.table({"year": pa.nulls(1)}))
    assert len(index) == 2


def test_milvus_searches_a_graph_only_where_it_finds_what_an_exact_search_finds(
    tmp_path, monkeypatch, some, names, ids
):
    index = open_index(f"milvus:{tmp_path / 'm.db'}", "images", dim=DIM)
    index.add(names(500), some(500), pa.table({"n": range(500)}))
    exact = ids(index.search(some(1), 10)[0])
    monkeypatch.setattr(milvus, "MIN_GRAPH_RECALL", 1.1)
    assert milvus.build_structure(index._client, "images", 500, min_rows=100) == "FLAT"
    monkeypatch.undo()
    assert milvus.build_structure(index._client, "images", 500, min_rows=100) == "HNSW"
    graph = open_index(f"milvus:{tmp_path / 'm.db'}", "images")
    assert ids(graph.search(some(1), 10)[0]) == exact
    graph.add(["new"], some(1, seed=5), NOTHING)
    assert ids(graph.search(some(1, seed=5), 1)[0]) == ["new"]
    assert len(graph.search(some(1), 10, Comparison("n", ">=", 490.0))[0]) == 10


def test_an_address_of_milvus_is_read(monkeypatch):
    monkeypatch.setenv("MILVUS_TOKEN", "from the environment")
    assert address_of("milvus://host:19530") == ("http://host:19530", "from the environment")
    assert address_of("milvuss://root:pass%40word@host:19530") == ("https://host:19530", "root:pass@word")
    assert address_of("milvus:photos/index.db") == ("photos/index.db", "")
    for bad in ("milvus://", "milvus://host:19530/database"):
        with pytest.raises(UserError, match="not an address of Milvus; write milvus://host:19530"):
            address_of(bad)


def test_a_missing_engine_is_named_with_what_installs_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(UserError, match=re.escape(install_command("milvus"))):
        open_index("milvus://localhost:19530", "images", dim=DIM)
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(UserError, match=re.escape(install_command("search"))):
        open_index(tmp_path, "images", dim=DIM)
