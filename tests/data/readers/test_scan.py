from __future__ import annotations

import json

import numpy as np
import pytest

from calligram.errors import UserError


def rows(count: int, regions: int = 3, start: int = 0) -> np.ndarray:
    """Features whose every value says which image they are of."""
    return np.broadcast_to(np.arange(start, start + count)[:, None, None], (count, regions, 20)).astype(np.float32)


def write(folder, split: str, array: np.ndarray, captions: list[str], ids: list[object] | None = None) -> None:
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{split}_ims.npy", array)
    (folder / f"{split}_caps.txt").write_text("".join(f"{c}\n" for c in captions))
    if ids is not None:
        (folder / f"{split}_ids.txt").write_text("".join(f"{i}\n" for i in ids))


def stored(made, image: str) -> float:
    row = list(made.images("id")).index(image)
    return float(made.collection.features["regions"].take(np.array([row]))[0, 0, 0])


CAPTIONS = [f"image {n} caption {m}" for n in range(5) for m in range(2)]


def test_one_feature_row_per_image(tmp_path, importer) -> None:
    write(tmp_path / "in", "train", rows(5), CAPTIONS, ids=[10, 11, 12, 13, 14])
    made = importer("scan", tmp_path / "in")
    assert made.captions_of("13") == ["image 3 caption 0", "image 3 caption 1"]
    assert stored(made, "13") == 3
    assert made.collection.features["regions"].row_shape == (3, 20)
    assert made.collection.splits() == {"train": 5}


def test_one_feature_row_per_caption_is_found_from_ids(tmp_path, importer) -> None:
    ids = [10 + n // 2 for n in range(10)]
    write(tmp_path / "in", "train", np.repeat(rows(5), 2, axis=0), CAPTIONS, ids=ids)
    made = importer("scan", tmp_path / "in")
    assert made.captions_of("13") == ["image 3 caption 0", "image 3 caption 1"]
    assert stored(made, "13") == 3


def test_one_feature_row_per_caption_is_found_from_repeated_rows(tmp_path, importer) -> None:
    write(tmp_path / "in", "train", np.repeat(rows(5), 2, axis=0), CAPTIONS)
    made = importer("scan", tmp_path / "in")
    assert made.captions_of("train/3") == ["image 3 caption 0", "image 3 caption 1"]
    assert stored(made, "train/3") == 3


def test_one_id_per_caption_and_one_row_per_image_allow_any_number_of_captions(tmp_path, importer) -> None:
    write(tmp_path / "in", "train", rows(3), ["a", "b", "c", "d", "e"], ids=[7, 7, 7, 8, 9])
    made = importer("scan", tmp_path / "in")
    assert made.captions_of("7") == ["a", "b", "c"]
    assert (stored(made, "8"), stored(made, "9")) == (1, 2)


def test_one_caption_per_image_is_not_mistaken_for_repeated_rows(tmp_path, importer) -> None:
    write(tmp_path / "in", "dev", rows(4), ["a", "b", "c", "d"])
    made = importer("scan", tmp_path / "in")
    assert made.captions_of("dev/2") == ["c"]


def test_splits_are_stacked_and_testall_is_used_instead_of_test(tmp_path, importer) -> None:
    write(tmp_path / "in", "train", rows(3), ["a", "b", "c"], ids=[1, 2, 3])
    write(tmp_path / "in", "dev", rows(2, start=10), ["d", "e"], ids=[4, 5])
    write(tmp_path / "in", "test", rows(1, start=20), ["f"], ids=[6])
    write(tmp_path / "in", "testall", rows(2, start=20), ["f", "g"], ids=[6, 7])
    made = importer("scan", tmp_path / "in")
    assert made.collection.splits() == {"train": 3, "dev": 2, "test": 2}
    assert [stored(made, i) for i in ("3", "4", "7")] == [2, 10, 21]
    assert made.problems == [("split not read", "test")]


def test_a_blank_caption_does_not_shift_the_others(tmp_path, importer) -> None:
    write(tmp_path / "in", "train", rows(2), ["a", "", "c", "d"])
    made = importer("scan", tmp_path / "in")
    assert made.captions_of("train/1") == ["c", "d"]
    assert made.problems == [("empty caption", "train#1")]


def test_features_without_regions_are_read_too(tmp_path, importer) -> None:
    write(tmp_path / "in", "train", rows(2)[:, 0], ["a", "b"])
    assert importer("scan", tmp_path / "in").collection.features["images"].row_shape == (20,)


def test_pictures_are_found_through_the_mapping_of_ids(tmp_path, pictures, importer) -> None:
    write(tmp_path / "in", "train", rows(2), ["a", "b"], ids=[0, 1])
    (tmp_path / "in/id_mapping.json").write_text(json.dumps({"0": "1000092795.jpg", "1": "99.jpg"}))
    pictures(tmp_path / "photos", "1000092795.jpg", "99.jpg")
    made = importer("scan", tmp_path / "in", images=tmp_path / "photos")
    assert made.collection.pictures.open(1).size == (40, 30)
    assert list(made.images("id")) == ["1000092795.jpg", "99.jpg"]


@pytest.mark.parametrize(
    "captions, ids, message",
    [
        (7, None, "7 captions cannot be divided evenly among 3 rows of features; add train_ids.txt"),
        (6, 4, "4 ids for 3 rows of features and 6 captions"),
        (7, 7, "7 different ids for 3 rows of features; they must be equal in number"),
    ],
)
def test_inconsistent_numbers_are_refused(tmp_path, importer, captions, ids, message) -> None:
    write(tmp_path / "in", "train", rows(3), ["x"] * captions, None if ids is None else list(range(ids)))
    with pytest.raises(UserError, match=message):
        importer("scan", tmp_path / "in")


def test_truncated_and_pickled_arrays_are_refused(tmp_path, importer) -> None:
    write(tmp_path / "in", "train", rows(3), ["a", "b", "c"])
    file = tmp_path / "in/train_ims.npy"
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(UserError, match=r"train_ims\.npy is not a whole \.npy array of numbers"):
        importer("scan", tmp_path / "in")
    np.save(file, np.array([{"a": 1}], dtype=object))
    with pytest.raises(UserError, match=r"train_ims\.npy is not a whole \.npy array of numbers"):
        importer("scan", tmp_path / "in")


def test_a_missing_array_is_refused(tmp_path, importer) -> None:
    write(tmp_path / "in", "train", rows(3), ["a", "b", "c"])
    (tmp_path / "in/train_ims.npy").unlink()
    with pytest.raises(UserError, match=r"train_ims\.npy is missing"):
        importer("scan", tmp_path / "in")
