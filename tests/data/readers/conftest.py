"""What the readers' tests share: making pictures, and importing with the problems at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from calligram.data.collection import Collection
from calligram.data.readers.catalog import import_collection


class Imported(NamedTuple):
    collection: Collection
    problems: list[tuple[str, str]]
    """kind and item of each"""

    def captions_of(self, image: str) -> list[str]:
        pairing = self.collection.sentences("all")
        row = pairing.visuals.ids.index(image)
        return [pairing.texts.strings[t] for t in pairing.matches.texts_of(row)]

    def images(self, column: str) -> dict[str, object]:
        ids = self.collection.column("images", "id")
        return dict(zip(map(str, ids), self.collection.column("images", column), strict=True))


Pictures = Callable[..., None]
Importer = Callable[..., Imported]


@pytest.fixture
def pictures() -> Pictures:
    """Write a small picture at each path under a folder, each of another shade."""

    def write(folder: Path, *names: str, size: tuple[int, int] = (40, 30)) -> None:
        for number, name in enumerate(names):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", size, (40 * number % 256, 90, 120)).save(folder / name)

    return write


@pytest.fixture
def importer(tmp_path: Path) -> Importer:
    """Import into a fresh folder."""

    def run(format: str, source: Path, **options: object) -> Imported:
        made, problems = import_collection(format, source, tmp_path / "made/collection", **options)  # type: ignore[arg-type]
        return Imported(made, [(p.kind, p.item) for p in problems.found])

    return run
