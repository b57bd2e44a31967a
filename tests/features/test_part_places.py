from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from calligram.data.draft import RegionRecord
from calligram.data.grounding import feature_boxes
from calligram.data.write_collection import write_draft
from calligram.features.images.pixels import PixelInput
from calligram.features.images.region_input import grid_part_boxes, square_grid_boxes, stored_part_boxes
from calligram.features.images.stored_input import StoredInput


@pytest.mark.parametrize("fit", ["squash", "crop"])
@pytest.mark.parametrize("size", [(90, 60), (60, 91), (64, 64)])
def test_what_lies_in_a_cell_of_the_grid_lies_in_its_box_of_the_picture(fit, size):
    """A white patch that fills a box of the picture fills that cell of what the network is given, and no other."""
    pixels = PixelInput(48, fit)
    boxes = square_grid_boxes(pixels, size, 9)
    for number, (left, top, right, bottom) in enumerate(boxes * np.array([*size, *size])):
        picture = Image.new("RGB", size)
        picture.paste("white", (round(left), round(top), round(right), round(bottom)))
        given = pixels.resize(picture).mean(0).reshape(3, 16, 3, 16).mean((1, 3)).ravel()
        assert given.argmax() == number
        assert given[number] > 220
        assert np.delete(given, number).max() < 25


def test_by_hand():
    """Of 100 x 50, crop keeps 25 .. 75 across; two by two cells of 25 pixels."""
    expected = [[0.25, 0, 0.5, 0.5], [0.5, 0, 0.75, 0.5], [0.25, 0.5, 0.5, 1], [0.5, 0.5, 0.75, 1]]
    np.testing.assert_allclose(square_grid_boxes(PixelInput(8, "crop"), (100, 50), 4), expected)
    np.testing.assert_allclose(square_grid_boxes(PixelInput(8), (100, 50), 1), [[0, 0, 1, 1]])
    assert square_grid_boxes(PixelInput(8), (100, 50), 6) is None
    assert grid_part_boxes(StoredInput("colour"), (100, 50), 4) is None


@pytest.fixture(scope="module")
def boxed(tiny_draft, tmp_path_factory):
    """Features of up to three boxes an image, called as their source is and as bottom-up's are."""
    folder = tmp_path_factory.mktemp("boxed")
    (folder / "pictures").mkdir()
    draft = tiny_draft(folder / "pictures")
    values = np.random.default_rng(0).normal(size=(len(draft.images), 3, 4)).astype(np.float32)
    for name, source in (("windows", "windows"), ("regions", "bottom-up")):
        np.save(folder / f"{name}.npy", values)
        draft.features[name] = [folder / f"{name}.npy"]
        for row, image in enumerate(draft.images):
            image.feature_rows[name] = row
            for number in range(3):
                box = (4.0 * number, 2.0, 20.0 + number, 30.0)
                draft.regions.append(RegionRecord(f"{image.id}/{source}{number}", image.id, box, source=source))
    return write_draft(draft, folder / "collection")


@pytest.mark.parametrize("name", ["windows", "regions"])
def test_stored_features_lie_where_their_boxes_do(boxed, name):
    boxes = feature_boxes(boxed, name, 2)
    np.testing.assert_allclose(boxes, [[0, 2, 20, 30], [4, 2, 21, 30], [8, 2, 22, 30]])
    np.testing.assert_allclose(
        stored_part_boxes(StoredInput(name), boxed, 2), boxes / np.array([40, 32, 40, 32]), rtol=1e-6
    )


def test_features_without_boxes_have_no_place(stored_tiny):
    assert feature_boxes(stored_tiny, "colour", 0).shape == (0, 4)
    assert stored_part_boxes(StoredInput("colour"), stored_tiny, 0) is None
