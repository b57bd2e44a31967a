"""Transformers in bfloat16 or in float32: as chosen, as before, or as is fast on the device."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from calligram import device
from calligram.errors import UserError
from calligram.search.indexing import run
from calligram.search.indexing.run import index, index_source
from calligram.search.indexing.shards import Shard, stage_source
from calligram.search.library.manifest import MANIFEST, REBUILT, read_manifest
from calligram.search.library.matchers import LibraryMatchers


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """A device with fast bfloat16."""
    monkeypatch.setattr(device, "has_fast_bfloat16", lambda device_type: True)


@pytest.fixture
def clip(tiny_clip):
    return LibraryMatchers.load(tiny_clip)


def precisions(library):
    return read_manifest(library).precisions


def test_transformers_in_bfloat16_give_nearly_the_same_vectors(clip, photos, tmp_path, contents):
    half, full = tmp_path / "half", tmp_path / "full"
    index_source(clip, photos, half)
    index_source(clip, photos, full, precision="fp32")
    assert (precisions(half), precisions(full)) == (("bf16",), ("fp32",))
    one, two = (np.stack([vector for _, (_, vector) in sorted(contents(out).items())]) for out in (half, full))
    assert (one != two).any()
    assert (one * two).sum(1).min() > 0.999


def test_a_library_keeps_its_precision_until_another_one_is_chosen(clip, photos, tmp_path, photograph, caplog):
    out = tmp_path / "library"
    index_source(clip, photos, out, precision="fp32")
    photograph(photos / "fresh.jpg", 40)
    index_source(clip, photos, out)
    assert precisions(out) == ("fp32",)
    photograph(photos / "fresher.jpg", 41)
    index_source(clip, photos, out, precision="auto")
    assert precisions(out) == ("bf16", "fp32")
    assert "pictures encoded in bf16 and fp32" in read_manifest(out).lines()
    assert not caplog.messages
    index_source(clip, photos, out, precision="fp32")
    assert caplog.messages == [f"{out} has vectors that were computed in bf16; add --rebuild to compute all in fp32"]
    index_source(clip, photos, out, precision="fp32", rebuild=True)
    assert precisions(out) == ("fp32",)


def test_an_interrupted_rebuild_starts_again_for_a_higher_precision(clip, photos, tmp_path, monkeypatch):
    out = tmp_path / "library"
    index_source(clip, photos, out)
    with monkeypatch.context() as patch:
        patch.setattr(run.OpenedWriter, "finish", lambda *a, **b: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            index_source(clip, photos, out, rebuild=True)
    assert read_manifest(out, REBUILT).precisions == ("bf16",)
    assert index_source(clip, photos, out, rebuild=True, precision="fp32").counts["added"] == 12
    assert precisions(out) == ("fp32",)


def test_shards_in_bfloat16_are_encoded_again_for_a_library_in_float32(clip, photos, tmp_path):
    out, shards = tmp_path / "library", [Shard(1, 2), Shard(2, 2)]
    first = [stage_source(clip, photos, out, shard) for shard in shards]
    assert stage_source(clip, photos, out, shards[0]) == 0
    assert stage_source(clip, photos, out, shards[0], precision="fp32") == first[0]
    assert stage_source(clip, photos, out, shards[0], precision="fp32") == 0
    index_source(clip, photos, out, precision="fp32")
    assert precisions(out) == ("fp32",)


def test_threads_that_index_at_the_same_time_have_their_own_precision(tiny_clip, photos, tmp_path):
    names = [f"{precision}-{number}" for number in range(3) for precision in ("auto", "fp32")]

    def work(name):
        index_source(LibraryMatchers.load(tiny_clip), photos, tmp_path / name, precision=name.partition("-")[0])

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(work, names))
    found = {name: precisions(tmp_path / name) for name in names}
    assert found == {name: ("bf16",) if name.startswith("auto") else ("fp32",) for name in names}


def test_convolutional_networks_stay_in_float32(models, photos, tmp_path):
    index_source(models, photos, tmp_path / "library", precision="auto")
    assert precisions(tmp_path / "library") == ("fp32",)


def test_a_library_of_an_earlier_version_is_in_float32(indexed):
    content = json.loads((indexed / MANIFEST).read_text())
    del content["precisions"]
    content.pop("checksum", None)
    (indexed / MANIFEST).write_text(json.dumps(content))
    assert precisions(indexed) == ("fp32",)


@pytest.mark.parametrize("precision", ["bf16", "FP32", ""])
def test_other_precisions_are_refused_before_anything_is_written(clip, tiny_clip, photos, tmp_path, precision):
    message = f"precision must be auto or fp32, or None for as before, got {precision!r}"
    out = tmp_path / "library"
    for work in (
        lambda: index(tiny_clip, photos, out=out, precision=precision),
        lambda: stage_source(clip, photos, out, Shard(1, 1), precision=precision),
    ):
        with pytest.raises(UserError, match=message):
            work()
    assert not out.exists()


def test_devices_have_the_names_of_the_command_line(tiny_clip, photos, tmp_path):
    assert index(tiny_clip, photos, out=tmp_path / "library", device="auto").counts["added"] == 12
    with pytest.raises(UserError, match="unknown device 'gpu'"):
        index(tiny_clip, photos, out=tmp_path / "other", device="gpu")
