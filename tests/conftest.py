"""A tiny collection of real pictures: six images, fourteen captions, one caption shared by two images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from calligram.data.collection import Collection
from calligram.data.draft import CaptionRecord, Draft, FileAt, ImageRecord, PhraseRecord, RegionRecord
from calligram.data.writing import write_collection

COLOURS = ("red", "green", "blue", "yellow", "white", "black")


def tiny_draft(folder: Path, repeats: int = 1) -> Draft:
    """Six images per repeat, a coloured disc on grey each; all of them in train, and again in dev and test."""
    draft = Draft("tiny")
    for split in ("train", "dev", "test"):
        for number in range(6 * repeats):
            colour = COLOURS[number % 6]
            image_id = f"{split}-{number}"
            picture = Image.new("RGB", (40, 32), (120 + number // 6, 120, 120))
            ImageDraw.Draw(picture).ellipse((8, 4, 32, 28), fill=colour)
            picture.save(folder / f"{image_id}.png")
            draft.images.append(
                ImageRecord(image_id, FileAt(folder / f"{image_id}.png"), split, identity=number % 2, metadata={"n": number})
            )
            draft.regions.append(RegionRecord(f"{image_id}/disc", image_id, (8, 4, 33, 29), label="disc"))
            for turn, text in enumerate((f"a {colour} disc", f"the round thing is {colour}")):
                caption_id = f"{image_id}#{turn}"
                draft.captions.append(CaptionRecord(caption_id, text, (image_id,)))
                if turn == 0:
                    draft.phrases.append(
                        PhraseRecord(f"{caption_id}/0", caption_id, 2, len(text), "disc", regions=(f"{image_id}/disc",))
                    )
        draft.captions.append(CaptionRecord(f"{split}-shared", "a warm colour", (f"{split}-0", f"{split}-3")))
        draft.captions.append(CaptionRecord(f"{split}-extra", "snow", (f"{split}-4",)))
    return draft


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """The collection, written once."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "pictures").mkdir()
    return write_collection(tiny_draft(folder / "pictures"), folder / "collection")


@pytest.fixture(scope="session")
def assets() -> Path:
    """Real photographs and small models; tests that need them are skipped without."""
    folder = os.environ.get("CALLIGRAM_ASSETS")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs CALLIGRAM_ASSETS: a folder with flickr8k/, models/ and text/")
    return Path(folder)


@pytest.fixture(scope="session")
def stored_tiny(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """The same with a feature array, three parts of four numbers per image, for matchers without a CNN."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "pictures").mkdir()
    draft = tiny_draft(folder / "pictures")
    values = np.random.default_rng(0).normal(size=(len(draft.images), 3, 4)).astype(np.float32)
    np.save(folder / "colour.npy", values)
    draft.features["colour"] = [folder / "colour.npy"]
    for row, image in enumerate(draft.images):
        image.feature_rows["colour"] = row
    return write_collection(draft, folder / "collection")
