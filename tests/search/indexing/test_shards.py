"""Pictures encoded in shards, which a last run takes in."""

from __future__ import annotations

import pytest

from calligram.errors import UserError
from calligram.files import lock_folder
from calligram.search.indexing import run
from calligram.search.indexing.run import index_source
from calligram.search.indexing.shards import Shard, stage_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers


def test_rows_of_shards_are_added_without_encoding_again(
    models, photos, indexed, tmp_path, monkeypatch, contents, same, done
):
    out = tmp_path / "sharded"
    counts = [stage_source(models, photos, out, Shard(number, 3)) for number in (1, 2, 3)]
    assert sum(counts) == 12
    assert stage_source(models, photos, out, Shard(2, 3)) == 0
    with pytest.raises(UserError, match='holds encoded shards only; "calligram index" without --shard makes a library'):
        Library.open(out)

    def never(*_, **__):
        raise AssertionError("encoded again")

    monkeypatch.setattr(run.PictureEncoder, "of", never)
    report = index_source(models, photos, out)
    assert done(report) == {"added": 12}
    assert same(contents(out), contents(indexed))
    assert not list((out / "staging").iterdir())


def test_a_run_without_shard_encodes_what_the_shards_did_not(
    models, photos, indexed, tmp_path, photograph, contents, same
):
    out = tmp_path / "sharded"
    stage_source(models, photos, out, Shard(1, 2))
    photograph(photos / "late.jpg", 90)
    index_source(models, photos, out)
    index_source(models, photos, indexed)
    assert same(contents(out), contents(indexed))


def test_shards_of_another_matcher_are_ignored(models, photos, indexed, tmp_path, write_run, contents, same):
    out = tmp_path / "sharded"
    stage_source(LibraryMatchers.load(write_run(tmp_path / "other", seed=1)), photos, out, Shard(1, 1))
    index_source(models, photos, out)
    assert same(contents(out), contents(indexed))


def test_a_shard_that_is_being_encoded_is_an_error(models, photos, tmp_path):
    out = tmp_path / "sharded"
    stage_source(models, photos, out, Shard(1, 1))
    (folder,) = (out / "staging").glob("*/1-of-1")
    with lock_folder(folder, "shard"), pytest.raises(UserError, match=r"shard 1-of-1 .* is still being encoded"):
        index_source(models, photos, out)


@pytest.mark.parametrize("text", ["0/4", "5/4", "3", "a/b", "3/16/2"])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="--shard takes a number and a count such as 3/16"):
        Shard.parse(text)
