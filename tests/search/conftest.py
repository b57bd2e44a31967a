"""A matcher of random weights and a folder of photographs with what cameras write into them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from calligram.features.images.pixels import PixelInput
from calligram.features.images.region_input import RegionInput
from calligram.features.inputs import Inputs
from calligram.features.regions.region_features import RegionCrops
from calligram.features.texts.text_vectors import TextVectorInput, TextVectorSettings
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models import catalog
from calligram.models.catalog import INPUTS_FOLDER, MATCHER_FILE, RUN_FILE, WEIGHTS_FILE
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.two_branch import TwoBranchEmbedding, TwoBranchSettings
from calligram.models.vse import VSE, VSESettings
from calligram.search.indexing.run import IndexReport, index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.library.tables import open_index
from calligram.search.vectors.index import Index

WORDS = ["a red disc", "the round thing is blue", "green yellow white black", "a warm colour", "snow"]
DIM = 7


def _write_run(folder: Path, seed: int = 0, **changes: object) -> Path:
    """A run folder as training leaves it, of a very small network."""
    folder.mkdir(parents=True)
    words = Vocabulary.build(WORDS, min_count=1)
    torch.manual_seed(seed)
    text = TextArchitecture(vocabulary=len(words), word_dim=6, hidden=8, pooling="last")
    small = {"image": ImageArchitecture("cnn", channels=(4, 8)), "text": text, "dim": 8}
    matcher = VSE(VSESettings(**{**small, **changes}))
    (folder / RUN_FILE).write_text("{}\n")
    catalog.save(matcher, folder / MATCHER_FILE, folder / WEIGHTS_FILE)
    Inputs(PixelInput(16), words).save(folder / INPUTS_FOLDER)
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
    texts = TextVectorInput.fit(WORDS, None, TextVectorSettings(kind="tfidf"))
    regions = RegionInput(RegionCrops(PixelInput(16), 2), "grid", "grid", 20)
    torch.manual_seed(seed)
    towers = ImageArchitecture(feature_dim=regions.dim), TextArchitecture("vectors", state_dim=texts.dim)
    (folder / RUN_FILE).write_text("{}\n")
    catalog.save(
        TwoBranchEmbedding(TwoBranchSettings(*towers, 4, hidden=8)), folder / MATCHER_FILE, folder / WEIGHTS_FILE
    )
    Inputs(regions, texts).save(folder / INPUTS_FOLDER)
    return folder


@pytest.fixture(scope="session")
def localizer_run() -> Callable[..., Path]:
    """Makes a run folder of a matcher of regions."""
    return _write_localizer


@pytest.fixture(scope="session")
def photograph() -> Callable[..., Path]:
    """Takes a picture."""
    return _photograph


@pytest.fixture(scope="module")
def models(small_run: Path) -> LibraryMatchers:
    """It, loaded."""
    return LibraryMatchers.load(small_run)


@pytest.fixture
def indexed(models: LibraryMatchers, photos: Path, tmp_path: Path) -> Path:
    """A library of the photographs."""
    index_source(models, photos, tmp_path / "library")
    return tmp_path / "library"


def _by_path(library: Library) -> dict[str, str]:
    return {row["path"]: row["id"] for row in library.rows()}


@pytest.fixture(scope="session")
def by_path() -> Callable[[Library], dict[str, str]]:
    """Gives the ids of a library's items by path."""
    return _by_path


Contents = dict[str, tuple[str, tuple[float, ...]]]


def _contents(folder: Path) -> Contents:
    library = Library.open(folder)
    rows = [row for row in library.rows() if row["state"] == "present"]
    vectors = library.images.vectors([row["id"] for row in rows]) if rows else []
    return {row["path"]: (row["id"], tuple(v.tolist())) for row, v in zip(rows, vectors, strict=True)}


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], Contents]:
    """Gives id and vector of every item by path."""
    return _contents


def _same(one: Contents, two: Contents) -> bool:
    ids = [{path: id for path, (id, _) in side.items()} for side in (one, two)]
    return ids[0] == ids[1] and all(np.allclose(one[path][1], two[path][1], atol=2e-3) for path in one)


@pytest.fixture(scope="session")
def same() -> Callable[[Contents, Contents], bool]:
    """Says whether items are the same; a picture encoded beside others may differ in the last place."""
    return _same


def _done(report: IndexReport) -> dict[str, int]:
    return {name: n for name, n in report.counts.items() if n and name not in ("unchanged", "still bad")}


@pytest.fixture(scope="session")
def done() -> Callable[[IndexReport], dict[str, int]]:
    """Gives the changes that a run of indexing took in."""
    return _done


@pytest.fixture(scope="session")
def some() -> Callable[..., np.ndarray]:
    """Makes vectors."""
    return lambda count, seed=0: np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


@pytest.fixture(scope="session")
def names() -> Callable[[int], list[str]]:
    """Makes ids."""
    return lambda count: [f"item {n}" for n in range(count)]


@pytest.fixture(scope="session")
def ids() -> Callable[..., list[str]]:
    """Gives those of hits."""
    return lambda hits: [hit.id for hit in hits]


@pytest.fixture(scope="session")
def place() -> Callable[[str, Path], str]:
    """Gives the address of an engine's index in a folder."""
    return lambda engine, folder: str(folder / "index") if engine == "lance" else f"milvus:{folder / 'index.db'}"


@pytest.fixture(params=["lance", "milvus"])
def uri(request: pytest.FixtureRequest, place: Callable[[str, Path], str], tmp_path: Path) -> str:
    """Each engine's."""
    return place(request.param, tmp_path)


@pytest.fixture
def index(uri: str) -> Index:
    """An empty index of each engine, for what ``some`` makes."""
    return open_index(uri, "images", dim=DIM)
