from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from calligram.errors import UserError
from calligram.features.images.pixels import Augment, PixelInput, mean_over_views, pixel_centres
from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary


def test_squash_keeps_the_whole_image_and_crop_keeps_the_centre():
    wide = Image.fromarray(np.repeat(np.arange(120, dtype=np.uint8)[None, :, None], 40, 0).repeat(3, 2))
    squashed, cropped = (PixelInput(40, fit).resize(wide) for fit in ("squash", "crop"))
    assert squashed.shape == cropped.shape == (3, 40, 40)
    assert squashed[0, 0, -1] - squashed[0, 0, 0] > 100
    assert np.array_equal(cropped[0], np.repeat(np.arange(40, 80)[None], 40, 0))


@pytest.mark.parametrize("size", [(96, 96), (500, 375), (577, 1301), (2048, 1000), (31, 900), (289, 290)])
def test_resizing_a_reduced_image_equals_pillow(size):
    drawn = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image, pixels = Image.fromarray(drawn), PixelInput(size=48)
    wanted = np.asarray(image.resize((48, 48), Image.Resampling.BICUBIC, reducing_gap=3.0)).transpose(2, 0, 1)
    assert np.array_equal(pixels.resize(image), wanted)
    assert np.array_equal(pixels.resize(image, pixels.reduce(image)), wanted)


def test_normalisation_follows_the_definition():
    pixels = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    source = PixelInput(4, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    found = source.finish(pixels)
    for c, (mean, std) in enumerate(zip(source.mean, source.std, strict=True)):
        torch.testing.assert_close(found[:, c], (pixels[:, c] / 255 - mean) / std)


def test_images_decoded_on_demand_equal_those_in_memory(tiny):
    visuals = tiny.sentences("train").visuals
    kept, asked = PixelInput(20).load(visuals), PixelInput(20).load(visuals, budget=0)
    rows = np.array([3, 0, 5])
    assert torch.equal(kept.take(rows), asked.take(rows))
    assert torch.equal(kept.take(rows)[0], PixelInput(20).images([visuals.open(3)])[0])


def test_augmentation_without_strength_changes_nothing():
    images = torch.rand(3, 3, 8, 8)
    assert torch.equal(Augment()(images), images)


def test_dropout_removes_entries_and_regions_but_never_all_regions():
    rows = torch.ones(200, 6, 50)
    assert torch.equal(Augment().features(rows), rows)
    dropped = Augment(dropout=0.25).features(rows)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert 0.2 < float((dropped == 0).float().mean()) < 0.3
    hidden = Augment(region_dropout=0.9).features(rows)
    there = hidden.any(-1)
    assert torch.equal(hidden, there.unsqueeze(-1) * rows)  # a region is kept or dropped as a whole
    assert there.any(1).all()
    assert float(there.float().mean()) < 0.35
    assert torch.equal(Augment(region_dropout=0.9).features(rows[:, 0]), rows[:, 0])  # vectors have no regions


def test_a_flip_mirrors_and_a_crop_stays_inside():
    images = torch.rand(64, 3, 8, 8)
    flipped = Augment(flip=True)(images)
    same = [torch.allclose(a, b, atol=1e-5) for a, b in zip(flipped, images, strict=True)]
    mirrored = [torch.allclose(a, b.flip(-1), atol=1e-5) for a, b in zip(flipped, images, strict=True)]
    assert all(s != m for s, m in zip(same, mirrored, strict=True))
    assert 10 < sum(mirrored) < 54
    gradient = torch.linspace(0, 1, 32).expand(64, 3, 32, 32)
    cropped = Augment(crop=0.5)(gradient)
    assert cropped.min() >= 0
    assert cropped.max() <= 1
    span = cropped[:, 0, 0, -1] - cropped[:, 0, 0, 0]
    assert (span < 1).any()
    assert (span > 0.5).all()


def test_jitter_equals_saturation_then_contrast_then_brightness_pixel_by_pixel():
    images = torch.rand(8, 3, 6, 5, dtype=torch.float64)
    torch.manual_seed(0)
    changed = Augment(jitter=0.4)(images)
    torch.manual_seed(0)
    factors = torch.stack([torch.empty(8, 1, 1, 1, dtype=torch.float64).uniform_(0.6, 1.4).flatten() for _ in range(3)])
    for image, found, (saturation, contrast, brightness) in zip(images, changed, factors.T.tolist(), strict=True):
        expected = image.clone()
        for y, x in itertools.product(range(6), range(5)):
            red, green, blue = image[:, y, x].tolist()
            grey = 0.299 * red + 0.587 * green + 0.114 * blue
            expected[:, y, x] = grey + saturation * (image[:, y, x] - grey)
        mean = expected.mean()
        expected = ((mean + contrast * (expected - mean)) * brightness).clamp(0, 1)
        torch.testing.assert_close(found, expected)
    assert changed.min() == 0
    assert changed.max() == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU can be waited for")
def test_a_training_batch_is_prepared_without_waiting_for_the_gpu():
    pixels = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8).cuda()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        PixelInput(8).finish(pixels, Augment(crop=0.5, flip=True, jitter=0.3))
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize("images", [PixelInput(32, "crop"), StoredInput("regions")])
def test_inputs_are_saved_and_read_back(tmp_path, images):
    inputs = Inputs(images, Vocabulary.build(["a dog"], 1, max_words=7))
    inputs.save(tmp_path)
    assert Inputs.read(tmp_path) == inputs


def test_damaged_inputs_and_missing_features_are_reported(tmp_path, tiny):
    (tmp_path / "inputs.json").write_text("{")
    with pytest.raises(UserError, match=r"inputs\.json is damaged"):
        Inputs.read(tmp_path)
    with pytest.raises(UserError, match=r"unknown stored feature 'regions': the collection has none; .*--backbone"):
        StoredInput("regions").load(tiny.sentences("train").visuals)
    with pytest.raises(UserError, match="a new picture has none"):
        StoredInput("regions").images([Image.new("RGB", (4, 4))])


def test_views_are_averaged_and_only_outside_training():
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    plain, flip, ten = (PixelInput(16, views=views) for views in ("one", "flip", "ten"))
    assert flip.finish(pixels, Augment()).shape == (2, 3, 16, 16)
    assert ten.finish(pixels).shape == (2, 10, 3, 16, 16)

    def encode(images: torch.Tensor) -> torch.Tensor:
        return images[:, :, 0, 0]

    images = plain.finish(pixels)
    expected = (encode(images) + encode(images.flip(-1))) / 2
    torch.testing.assert_close(mean_over_views(encode, flip.finish(pixels)), expected)
    torch.testing.assert_close(mean_over_views(encode, images), encode(images))
    # The first of the ten views is the upper left corner at 7/8 of the size, enlarged.
    assert torch.allclose(ten.finish(pixels)[:, 0, :, 0, 0], images[:, :, 0, 0], atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 7, 96, 224])
def test_places_of_pixels_equal_those_of_an_affine_grid(count):
    scale, shift = torch.tensor([0.7, -0.3]), torch.tensor([0.1, -0.2])
    theta = torch.zeros(2, 2, 3)
    theta[:, 0, 0], theta[:, 1, 1], theta[:, 0, 2] = scale, 1.0, shift
    grid = torch.nn.functional.affine_grid(theta, [2, 3, 5, count], align_corners=False)
    assert torch.equal(pixel_centres(count, torch.device("cpu")) * scale[:, None] + shift[:, None], grid[:, 0, :, 0])
