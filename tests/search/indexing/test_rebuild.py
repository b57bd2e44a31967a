"""Libraries that are made anew, for another matcher, while the old one serves."""

from __future__ import annotations

import shlex

import pytest

from calligram.errors import UserError
from calligram.search.indexing import run
from calligram.search.indexing.forget import forget_items
from calligram.search.indexing.run import index_source
from calligram.search.indexing.shards import Shard, stage_source
from calligram.search.library.library import Library
from calligram.search.library.manifest import REBUILT
from calligram.search.library.matchers import LibraryMatchers


def test_another_matcher_is_refused_with_the_command_that_rebuilds(models, photos, indexed, write_run, tmp_path):
    other = write_run(tmp_path / "other", seed=1)
    with pytest.raises(UserError) as refused:
        index_source(LibraryMatchers.load(other), photos, indexed)
    assert f'"calligram index {other} {photos} --out {indexed} --rebuild"' in str(refused.value)


def test_a_command_that_is_suggested_can_be_pasted(models, photos, write_run, tmp_path):
    other, out = write_run(tmp_path / "my $HOME run", seed=1), tmp_path / "the 'library'"
    index_source(models, photos, out)
    with pytest.raises(UserError) as refused:
        index_source(LibraryMatchers.load(other), photos, out)
    suggested = str(refused.value).split('"')[1::2]
    told = shlex.split('"'.join(suggested))
    assert told == ["calligram", "index", str(other), str(photos), "--out", str(out), "--rebuild"]


def test_a_library_can_be_searched_while_it_is_rebuilt(
    models, photos, indexed, write_run, tmp_path, photograph, monkeypatch, contents, done
):
    photograph(tmp_path / "more" / "a.jpg", 70)
    index_source(models, tmp_path / "more", indexed)
    other = LibraryMatchers.load(write_run(tmp_path / "other", seed=1, dim=12))
    before, ids = Library.open(indexed), contents(indexed)
    # Cut short in the middle, it goes on where it was, and until it is done the old library serves.
    take = run.IndexingRun.run
    monkeypatch.setattr(
        run.IndexingRun,
        "run",
        lambda self, **k: (
            (_ for _ in ()).throw(KeyboardInterrupt) if "more" in str(self.source.root) else take(self, **k)
        ),
    )
    with pytest.raises(KeyboardInterrupt):
        index_source(other, tmp_path / "more", indexed, rebuild=True)
    assert (indexed / REBUILT).is_file()
    assert Library.open(indexed).manifest.dim == 8
    monkeypatch.setattr(run.IndexingRun, "run", take)
    report = index_source(other, tmp_path / "more", indexed, rebuild=True)
    assert report.counts["unchanged"] == 12
    assert report.counts["added"] == 1
    after = before.refreshed()
    assert after.manifest.dim == after.images.dim == 12
    assert {path: id for path, (id, _) in contents(indexed).items()} == {p: id for p, (id, _) in ids.items()}
    assert done(index_source(other, photos, indexed)) == {}
    assert before.thumbnail(before.sample(1)[0])  # also after another run: a reader may take its time
    monkeypatch.setattr(run, "VERSION_GRACE_SECONDS", 0.0)
    assert done(index_source(other, photos, indexed)) == {}
    assert not (indexed / "1").exists()


def test_a_library_is_rebuilt_from_shards(models, photos, indexed, tmp_path, write_run, monkeypatch, contents, done):
    other = LibraryMatchers.load(write_run(tmp_path / "other", seed=1, dim=12))
    with pytest.raises(UserError, match="--rebuild"):
        stage_source(other, photos, indexed, Shard(1, 2))
    counts = [stage_source(other, photos, indexed, Shard(number, 2), rebuild=True) for number in (1, 2)]
    assert sum(counts) == 12
    ids = {path: id for path, (id, _) in contents(indexed).items()}

    def never(*_, **__):
        raise AssertionError("encoded again")

    monkeypatch.setattr(run.PictureEncoder, "of", never)
    assert done(index_source(other, photos, indexed, rebuild=True)) == {"added": 12}
    assert Library.open(indexed).images.dim == 12
    assert {path: id for path, (id, _) in contents(indexed).items()} == ids


def test_a_rebuild_misses_a_source_that_is_not_there(
    models, photos, indexed, tmp_path, photograph, contents, same, done
):
    photograph(tmp_path / "a disk" / "a.jpg", 70)
    index_source(models, tmp_path / "a disk", indexed)
    (tmp_path / "a disk").rename(tmp_path / "elsewhere")
    before = contents(indexed)
    with pytest.raises(UserError, match=r"also holds pictures of .*a disk, which cannot be opened") as refused:
        index_source(models, photos, indexed, rebuild=True)
    assert f"calligram forget {indexed} '{tmp_path / 'a disk'}'" in str(refused.value)
    assert not (indexed / REBUILT).exists()
    assert same(contents(indexed), before)
    assert forget_items(indexed, [str(tmp_path / "a disk")]) == 1  # as it was told to
    assert done(index_source(models, photos, indexed, rebuild=True)) == {"added": 12}
