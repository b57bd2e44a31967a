"""Vectors of a library as Parquet, read by pyarrow and by pandas."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from calligram.errors import UserError
from calligram.search.library import vector_files
from calligram.search.library.library import Library
from calligram.search.library.vector_files import read_vectors, write_vectors


@pytest.mark.parametrize("rows", [2, 10_000])
def test_vectors_are_those_of_the_library(indexed, tmp_path, monkeypatch, rows):
    monkeypatch.setattr(vector_files, "ROW_GROUP_VECTORS", rows)
    library = Library.open(indexed)
    assert write_vectors(library, tmp_path / "new" / "vectors.parquet") == len(library)
    found = read_vectors(tmp_path / "new" / "vectors.parquet")
    assert found.fingerprint == library.manifest.matcher.fingerprint
    assert np.array_equal(found.vectors, library.images.vectors(found.ids))
    assert np.allclose(np.linalg.norm(found.vectors, axis=1), 1, atol=1e-3)  # stored in half precision
    assert found.paths == [item.metadata["path"] for item in library.items(found.ids)]
    frame = pd.read_parquet(tmp_path / "new" / "vectors.parquet")
    assert np.array_equal(np.stack(frame["vector"]), found.vectors)


def test_the_verb_writes_a_file_and_refuses_an_existing_one(indexed, tmp_path, calligram):
    done = calligram("export", indexed, "--vectors", tmp_path / "v.parquet")
    assert f"{len(Library.open(indexed))} vectors in {tmp_path / 'v.parquet'}" in done.stdout, done.stderr
    assert "exists already" in calligram("export", indexed, "--vectors", tmp_path / "v.parquet").stderr
    (tmp_path / "other").write_text(json.dumps({}))
    with pytest.raises(UserError, match="is not a Parquet file with the columns id, path and vector"):
        read_vectors(tmp_path / "other")
