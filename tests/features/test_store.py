from __future__ import annotations

import json
import shutil
import signal
import threading
import time

import numpy as np
import pytest
import torch

from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.features.images import backbones, pixels, resize
from calligram.features.images.backbones import Backbone, BackboneInput
from calligram.features.images.pixels import PixelInput
from calligram.features.images.resize import resize_picture
from calligram.features.store import FeatureStore, content_key
from calligram.progress import silent


def tiny_backbone() -> Backbone:
    import transformers

    torch.manual_seed(0)
    return Backbone(
        transformers.MobileNetV2Model(transformers.MobileNetV2Config(depth_multiplier=0.1, image_size=32))
    ).eval()


def rows(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.float16)[:, None].repeat(3, 1)


def test_rows_are_found_by_content_key_in_several_parts(tmp_path):
    store = FeatureStore(tmp_path, {"a": 1})
    store.append(["x", "y"], rows(2))
    store.append(["z"], rows(1, 7))
    again = FeatureStore(tmp_path, {"a": 1})
    assert again.take(["z", "x"])[:, 0].tolist() == [7, 0]
    assert "y" in again
    assert "w" not in again


def test_rows_are_copies_in_plain_arrays_of_the_given_type(tmp_path):
    store = FeatureStore(tmp_path, {}, np.uint8)
    pixels = np.arange(4 * 12, dtype=np.uint8).reshape(4, 3, 2, 2)
    store.append(["a", "b"], pixels[:2])
    store.append(["c", "d"], pixels[2:])
    found = store.take(["d", "a", "c", "a"])
    assert type(found) is np.ndarray
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, pixels[[3, 0, 2, 0]])
    found[:] = 0
    np.testing.assert_array_equal(store.take(["d"]), pixels[3:])


def test_other_settings_have_another_store(tmp_path):
    FeatureStore(tmp_path, {"a": 1}).append(["x"], rows(1))
    assert len(FeatureStore(tmp_path, {"a": 2})) == 0


def test_an_incomplete_part_is_ignored_and_damage_is_reported(tmp_path):
    store = FeatureStore(tmp_path, {})
    store.append(["x"], rows(1))
    (store.folder / "000001.npy").write_bytes(b"half a fi")
    again = FeatureStore(tmp_path, {})
    assert len(again) == 1
    again.append(["y"], rows(1, 5))
    assert again.take(["y"])[0, 0] == 5
    (store.folder / "000000.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        FeatureStore(tmp_path, {})


def test_features_are_computed_once_and_only_for_new_images(tiny_draft, tmp_path, monkeypatch):
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    collection = write_draft(draft, tmp_path / "collection")
    source = BackboneInput(tiny_backbone(), PixelInput(32), "tiny")
    ran: list[int] = []
    original = BackboneInput.features
    monkeypatch.setattr(
        BackboneInput, "features", lambda self, pixels: ran.append(len(pixels)) or original(self, pixels)
    )
    train, test = (collection.sentences(s).visuals for s in ("train", "test"))
    found = source.load(train).take(np.arange(6))
    assert sum(ran) == 6
    # The images of the test split are the same bytes under other names.
    again = source.load(test).take(np.arange(6))
    assert sum(ran) == 6
    assert torch.equal(found, again)
    alone = source.images([train.open(2)])
    torch.testing.assert_close(alone[0], found[2].float(), rtol=1e-2, atol=1e-2)


def test_an_extraction_killed_with_signal_9_continues(tiny_draft, tmp_path, preloaded):
    (tmp_path / "pictures").mkdir()
    collection = write_draft(tiny_draft(tmp_path / "pictures", repeats=8), tmp_path / "collection")
    script = """
import itertools, sys, time
from calligram.data.collection import Collection
from calligram.features.images import backbones, pixels
from calligram.features.images.backbones import Backbone, BackboneInput
from calligram.features.images.pixels import PixelInput
backbones.STORE_PART_IMAGES = 8
run, batches = BackboneInput.features, itertools.count(1)
BackboneInput.features = lambda self, pixels: (time.sleep(600 if next(batches) > 6 else 0), run(self, pixels))[1]
collection = Collection.open(sys.argv[1])
backbone = Backbone.load(sys.argv[2]).eval()
BackboneInput(backbone, PixelInput(32), "tiny", batch=4).load(collection.sentences("train").visuals)
"""
    tiny_backbone().save(tmp_path / "backbone")
    cache = collection.folder / "cache"
    deadline = time.monotonic() + 180
    with preloaded.start(script, collection.folder, tmp_path / "backbone") as victim:
        while time.monotonic() < deadline and len(list(cache.glob("*/*.json"))) < 2 and victim.poll() is None:
            time.sleep(0.005)
        victim.kill()
    assert victim.returncode == -signal.SIGKILL
    kept = sum(len(json.loads(f.read_text())["keys"]) for f in cache.glob("*/*.json"))
    assert kept >= 16
    source = BackboneInput(Backbone.load(str(tmp_path / "backbone")).eval(), PixelInput(32), "tiny", batch=4)
    visuals = collection.sentences("train").visuals
    store = FeatureStore(cache, source._store_description())
    assert len(store) == kept
    source.fill(store, visuals, lambda items, label, total=None: iter(items))
    fresh = FeatureStore(tmp_path / "fresh", {})
    source.fill(fresh, visuals, lambda items, label, total=None: iter(items))
    keys = [content_key(visuals.pictures.read(int(r))) for r in visuals.rows]
    np.testing.assert_allclose(store.take(keys), fresh.take(keys), rtol=1e-2, atol=1e-3)
    assert backbones.STORE_PART_IMAGES == 512


def test_a_second_writer_waits_and_then_finds_the_rows(tmp_path):
    first, second = FeatureStore(tmp_path, {}), FeatureStore(tmp_path, {})
    order: list[str] = []

    def write_too() -> None:
        with second.fill():
            order.append("second")
            assert "x" in second
            second.append(["y"], rows(1, 5))

    with first.fill():
        other = threading.Thread(target=write_too)
        other.start()
        time.sleep(0.1)
        first.append(["x"], rows(1))
        order.append("first")
    other.join()
    assert order == ["first", "second"]
    assert FeatureStore(tmp_path, {}).take(["x", "y"])[:, 0].tolist() == [0, 5]


def test_two_inputs_that_start_together_compute_each_feature_once(tiny_draft, tmp_path, monkeypatch):
    (tmp_path / "pictures").mkdir()
    collection = write_draft(tiny_draft(tmp_path / "pictures"), tmp_path / "collection")
    source = BackboneInput(tiny_backbone(), PixelInput(32), "tiny")
    ran: list[int] = []
    original = BackboneInput.features

    def slow(self, pixels):
        ran.append(len(pixels))
        time.sleep(0.2)
        return original(self, pixels)

    monkeypatch.setattr(BackboneInput, "features", slow)
    visuals = collection.sentences("train").visuals
    both = [threading.Thread(target=source.load, args=(visuals,)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sum(ran) == 6


@pytest.fixture
def pictures(tiny_draft, tmp_path):
    """Six training images of a new collection."""
    (tmp_path / "pictures").mkdir()
    return write_draft(tiny_draft(tmp_path / "pictures"), tmp_path / "collection").sentences("train").visuals


def stored_parts(visuals) -> list[str]:
    return sorted(file.name for file in visuals.pictures.cache.glob("pixels-*/*/*.npy"))


def test_decoded_pictures_are_stored_once_and_read_back(pictures, monkeypatch):
    source = PixelInput(16)
    decoded = source.load(pictures).take(np.array([4, 0]))
    assert source.store(pictures, budget=100) is None
    assert not list(pictures.pictures.cache.glob("*"))
    assert len(source.store(pictures)) == 6
    monkeypatch.setattr(resize, "resize_picture", lambda *_: pytest.fail("decoded again"))
    assert source.store(pictures, budget=100) is not None  # all are there
    found = source.load(pictures)
    assert torch.equal(found.take(np.array([4, 0])), decoded)
    assert found.take(np.array([1])).dtype == torch.uint8
    assert len(found) == 6
    with pytest.raises(pytest.fail.Exception, match="decoded again"):
        PixelInput(16, "crop").load(pictures)


def test_many_pictures_are_stored_by_every_run_and_decoded_by_the_first(pictures, monkeypatch):
    monkeypatch.setattr(pixels, "MIN_STORE_BYTES", 6 * 3 * 16**2)
    labels: list[tuple[str, int | None]] = []

    def track(items, label, total=None):
        labels.append((label, total))
        return iter(items)

    in_memory = pixels.PixelRows(PixelInput(16), pictures, silent, 1 << 30)
    PixelInput(15).load(pictures)
    assert not stored_parts(pictures)
    first, second = PixelInput(16).load(pictures, track), PixelInput(16).load(pictures, track)
    assert labels == [("decoding images", 6)]
    rows = np.array([5, 0, 5])
    for found in (first, second):
        assert isinstance(found, pixels.StoredPixelRows)
        assert torch.equal(found.take(rows), in_memory.take(rows))


def test_a_killed_run_keeps_the_decoded_pictures_of_finished_parts(pictures, monkeypatch):
    monkeypatch.setattr(pixels, "STORE_PART_IMAGES", 2)
    decoded = []

    def killed_at_the_fifth(image, size, fit):
        decoded.append(image)
        if len(decoded) == 5:
            raise KeyboardInterrupt
        return resize_picture(image, size, fit)

    monkeypatch.setattr(resize, "resize_picture", killed_at_the_fifth)
    monkeypatch.setattr("calligram.data.pictures.core_share", lambda: 1)  # so that they are decoded in order
    with pytest.raises(KeyboardInterrupt):
        PixelInput(16).store(pictures)
    assert stored_parts(pictures) == ["000000.npy", "000001.npy"]
    found = PixelInput(16).store(pictures)
    assert len(decoded) in (7, 8)  # two were left; the sixth may have started before the kill
    for row in range(6):
        assert torch.equal(found.take(np.array([row])), PixelInput(16).images([pictures.open(row)]))


def test_where_pictures_cannot_be_stored_they_are_decoded_into_memory(pictures, monkeypatch, caplog):
    monkeypatch.setattr(pixels, "MIN_STORE_BYTES", 1)
    usage = shutil.disk_usage(pictures.pictures.cache.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=4 * 6 * 3 * 16**2 - 1))
    assert isinstance(PixelInput(16).load(pictures), pixels.PixelRows)
    monkeypatch.undo()
    monkeypatch.setattr(pixels, "MIN_STORE_BYTES", 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FeatureStore, "append", full)
    rows = PixelInput(16).load(pictures)
    assert isinstance(rows, pixels.PixelRows)
    assert torch.equal(rows.take(np.array([2])), PixelInput(16).images([pictures.open(2)]))
    assert "No space left on device" in caplog.text
