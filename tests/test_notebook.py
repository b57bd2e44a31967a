"""Displays in notebooks: pictures are there, and texts cannot add HTML."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from calligram.data.matches import Matches
from calligram.evaluation.retrieval import RetrievalReport, measure_retrieval
from calligram.search.query.searcher import Hit, Results


class Tags(HTMLParser):
    """Names of the tags of a page, each of which must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names, self.open = set[str](), list[str]()
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.names.add(tag)
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def pictures(html: str) -> list[Image.Image]:
    found = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', html)
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


def test_hits_are_shown_as_pictures(tmp_path):
    Image.new("RGB", (640, 320), "red").save(tmp_path / "<script>.png")
    (tmp_path / "b.png").write_bytes(b"damaged")
    hits = (Hit("1", 0.5, 1, str(tmp_path / "<script>.png")), Hit("2", 0.4, 2, str(tmp_path / "b.png")), Hit("3", 0, 3))
    html = Results(hits, below_cutoff=4)._repr_html_()
    assert Tags(html).names == {"div", "img", "br", "p"}, "the name of a file is text"
    assert [image.size for image in pictures(html)] == [(160, 80)]
    assert "4 of the nearest 7 are not a good match" in html
    assert "no good match" in Results(())._repr_html_()
    captions = Results((Hit("1", 0.5, 1, text="a <b>dog</b>"),))._repr_html_()
    assert "a &lt;b&gt;dog&lt;/b&gt;" in captions
    assert Tags(captions).names == {"table", "thead", "tbody", "tr", "th", "td"}


def test_a_collection_is_shown_with_counts_and_pictures(tiny):
    html = tiny._repr_html_()
    assert Tags(html).names >= {"table", "img"}
    assert len(pictures(html)) == 8
    assert f"<td>images</td><td>{len(tiny.table('images'))}</td>" in html


@pytest.mark.parametrize("shown", [str, repr])
def test_a_report_can_be_read(shown):
    matches = Matches.from_pairs([(0, 0), (1, 1), (2, 2)], (3, 3))
    measured = measure_retrieval(np.eye(3, dtype=np.float32), matches)
    long = shown(RetrievalReport(measured, 3, 3, true=measured)).splitlines()
    assert len({line.index("R@1") for line in long[1:]}) == 1, "long names do not shift their row"
    report = RetrievalReport(measured, 3, 3)
    assert shown(report).splitlines() == [
        "3 images, 3 texts; rsum 600.0",
        "image to text  R@1 100.0  R@5 100.0  R@10 100.0  median rank 1.0",
        "text to image  R@1 100.0  R@5 100.0  R@10 100.0  median rank 1.0",
    ]
    assert Tags(report._repr_html_()).names >= {"table", "td"}
