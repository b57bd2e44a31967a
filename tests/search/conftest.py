"""A matcher of random weights and a folder of photographs with what cameras write into them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import ExifTags, Image

from calligram.features.inputs import Inputs
from calligram.features.pixels import PixelInput
from calligram.features.region_input import RegionInput
from calligram.features.regions.crops import Crops
from calligram.features.text_vectors import VectorSettings, VectorText
from calligram.features.vocabulary import Vocabulary
from calligram.models import catalog
from calligram.models.stored import BEST, INPUTS, MATCHER, RUN
from calligram.models.two_branch import TwoBranchEmbedding, TwoBranchSettings
from calligram.models.vse import VSE, VSESettings

WORDS = ["a red disc", "the round thing is blue", "green yellow white black", "a warm colour", "snow"]


def _write_run(folder: Path, seed: int = 0, **changes: object) -> Path:
    """A run folder as training leaves it, of a very small network."""
    folder.mkdir(parents=True)
    words = Vocabulary.build(WORDS, min_count=1)
    torch.manual_seed(seed)
    shape = {"dim": 8, "channels": (4, 8), "word_dim": 6, "hidden": 8}
    matcher = VSE(VSESettings(vocabulary=len(words), **{**shape, **changes}))
    (folder / RUN).write_text("{}\n")
    catalog.save(matcher, folder / MATCHER, folder / BEST)
    Inputs(PixelInput(16), words).save(folder / INPUTS)
    return folder


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matcher on pixels."""
    return _write_run(tmp_path_factory.mktemp("small") / "run")


def _photograph(file: Path, seed: int, size: tuple[int, int] = (48, 36)) -> Path:
    """A picture like no other, with a camera's notes from an even seed on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.effect_noise(size, 20 + seed).convert("RGB")
    image.paste(((37 * seed) % 256, (91 * seed) % 256, (53 * seed) % 256), (0, 0, 20, 20))
    image.putpixel((1, 1), (seed % 256, seed // 256, 7))
    exif = Image.Exif()
    if seed % 2 == 0:
        exif[ExifTags.Base.Make], exif[ExifTags.Base.Model] = "Acme", f"Box {seed % 3}"
        exif[ExifTags.Base.DateTime] = f"{2010 + seed}:05:01 12:30:00"
    image.save(file, exif=exif)
    return file


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve photographs in two folders."""
    folder = tmp_path / "photos"
    for seed in range(12):
        _photograph(folder / ("trip" if seed % 3 else "") / f"photo_{seed}.jpg", seed)
    return folder


@pytest.fixture(scope="session")
def write_run() -> Callable[..., Path]:
    """Makes a run folder."""
    return _write_run


def _write_localizer(folder: Path, seed: int = 0) -> Path:
    """A run folder of a very small network of regions and phrases."""
    folder.mkdir(parents=True)
    texts = VectorText.fit(WORDS, None, VectorSettings(kind="tfidf"))
    regions = RegionInput(Crops(PixelInput(16), 2), "grid", "grid", 20)
    torch.manual_seed(seed)
    sizes = {"image_dim": regions.dim, "text_dim": texts.dim, "hidden": 8, "dim": 4}
    (folder / RUN).write_text("{}\n")
    catalog.save(TwoBranchEmbedding(TwoBranchSettings(**sizes)), folder / MATCHER, folder / BEST)
    Inputs(regions, texts).save(folder / INPUTS)
    return folder


@pytest.fixture(scope="session")
def localizer_run() -> Callable[..., Path]:
    """Makes a run folder of a matcher of regions."""
    return _write_localizer


@pytest.fixture(scope="session")
def photograph() -> Callable[..., Path]:
    """Takes a picture."""
    return _photograph
