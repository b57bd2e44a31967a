from __future__ import annotations

from PIL import Image

from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers
from calligram.serve.service import library_overview


def test_continuous_columns_have_no_facets(served_run, tmp_path):
    for number, (side, turn) in enumerate([(40, 20), (50, 30)] * 6):
        (tmp_path / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (side, turn), (20 * number, 9, 9)).save(
            tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        )
    index_source(LibraryMatchers.load(served_run / "run"), tmp_path / "photos", tmp_path / "library")
    library = Library.open(tmp_path / "library")
    assert set(library_overview(library).facets) == {"folder"}
    assert {"width", "height", "bytes", "latitude", "longitude"} <= set(library.kinds)
