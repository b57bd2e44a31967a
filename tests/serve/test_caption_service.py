"""Captions of a collection, without HTTP."""

from __future__ import annotations

import shutil
import time

from calligram.data.add_captions import NewCaption, add_new_captions
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers
from calligram.serve.caption_service import CaptionService


def test_a_fully_captioned_collection_has_nothing_to_suggest(library_folder, served_run):
    captions, library = CaptionService(served_run / "scenes"), Library.open(library_folder)
    until = time.monotonic() + 120
    while (found := captions.suggestions(library)).state == "working" and time.monotonic() < until:
        time.sleep(0.05)
    assert found.state == "failed"
    assert "has a caption, so there is nothing to suggest" in found.message


def test_a_new_caption_is_found_after_the_collection_is_indexed_again(served_run, few_captions, tmp_path):
    shutil.copytree(few_captions, tmp_path / "collection")
    models, library = LibraryMatchers.load(served_run / "run"), tmp_path / "library"
    index_source(models, tmp_path / "collection", library)
    add_new_captions(tmp_path / "collection", [NewCaption("scene 25", "an unmistakable caption")])
    index_source(models, tmp_path / "collection", library)
    opened = Library.open(library)
    (found,) = opened.full_text("unmistakable", 5)
    assert opened.item(found.id).captions[-1] == "an unmistakable caption"
