"""Every page is checked by axe-core, in two widths and both colour schemes: no serious or critical finding.

``axe.min.js`` is that of the npm package ``axe-core`` 4.14.0, unchanged (MPL-2.0).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from calligram.search.library.library import Library
from calligram.search.query.albums import change_album

AXE = Path(__file__).with_name("axe.min.js").read_text(encoding="utf-8")
SIZES = ({"width": 1280, "height": 800}, {"width": 390, "height": 780})
FIND = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
  .filter((found) => ["serious", "critical"].includes(found.impact))
  .map((found) => `${found.id}: ${found.nodes.map((node) => node.target.join(" ")).slice(0, 4).join("; ")}`)"""


def findings(page) -> dict[str, list[str]]:
    """The serious and critical findings of the present state of a page, by width and colours."""
    page.evaluate(AXE)
    found = {}
    for size in SIZES:
        for colours in ("light", "dark"):
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=colours, reduced_motion="reduce")
            found[f"{size['width']} px, {colours}"] = page.evaluate(FIND)
    page.set_viewport_size(SIZES[0])
    return {name: each for name, each in found.items() if each}


def tile(page):
    return page.locator("#results .tile[data-id]").first


def test_the_start_page_and_its_suggestions(page, served):
    page.goto(served.url)
    tile(page).wait_for()
    page.fill("#query", "a do")
    page.wait_for_selector("#suggestions li")
    assert findings(page) == {}


def test_results_with_filters_and_a_selection(copies_page, copies_served):
    page = copies_page
    page.goto(f"{copies_served.url}/?q=a+boat+-night&all=1")
    tile(page).wait_for()
    page.click("#filter")
    page.wait_for_selector(".bars button")
    page.locator("#results li").first.hover()
    page.locator(".select").first.click()
    assert findings(page) == {}


def test_captions_as_results_and_no_good_match(page, served):
    page.goto(f"{served.url}/?q=a+boat&find=captions&all=1")
    page.wait_for_selector("#results .word")
    assert findings(page) == {}
    page.goto(f"{served.url}/?q=zyzzyva")
    page.wait_for_selector("#notice h2")
    assert findings(page) == {}


def test_a_picture_with_its_words_and_zoomed(page, served):
    page.goto(f"{served.url}/?q=a+boat&all=1")
    tile(page).click()
    page.wait_for_selector("#like")
    assert findings(page) == {}
    page.keyboard.press("z")
    assert findings(page) == {}


@pytest.mark.parametrize(("name", "ready"), [("map.html", ".cluster"), ("copies.html", "#groups li li")])
def test_the_pages_of_the_whole_library(copies_page, copies_served, name, ready):
    copies_page.goto(f"{copies_served.url}/{name}")
    copies_page.wait_for_selector(ready)
    assert findings(copies_page) == {}


def test_the_caption_page(captioning_page, captioning):
    captioning_page.goto(f"{captioning.url}/caption.html")
    captioning_page.wait_for_selector(".todo input")
    assert findings(captioning_page) == {}


def test_the_dialog_that_asks_for_the_token(browser, guarded):
    context = browser.new_context(reduced_motion="reduce")
    opened = context.new_page()
    opened.goto(guarded)
    opened.wait_for_selector("#login[open]")
    assert findings(opened) == {}
    context.close()


def test_albums_and_their_suggestions_which_also_fit_a_phone(library_folder, tmp_path, serving, watched):
    own = shutil.copytree(library_folder, tmp_path / "library")
    change_album(own, "Boats", add=Library.open(own).sample(3))
    with serving(own) as url, watched(url) as page:
        page.goto(f"{url}/?album=Boats&suggest=1")
        page.locator("[data-answer]").first.wait_for()
        assert findings(page) == {}
        page.set_viewport_size(SIZES[1])
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[1]["width"]
        entry = page.locator("#results li").first
        right = entry.bounding_box()["x"] + entry.bounding_box()["width"]
        for button in entry.locator(".answer").all():
            box = button.bounding_box()
            assert box["height"] >= 32
            assert box["x"] + box["width"] <= right + 1
            assert button.evaluate("button => button.scrollWidth <= button.clientWidth")
        page.set_viewport_size(SIZES[0])
        page.goto(f"{url}/?album=Boats")
        page.wait_for_selector("#status:text-is('3 pictures')")
        page.locator("#results li").first.hover()
        page.locator(".select").first.click()
        page.click("#to-album")
        page.wait_for_selector("#album-dialog[open]")
        assert findings(page) == {}
        page.click("#album-cancel")
        page.click("#album-remove")
        page.wait_for_selector("#album-delete[open]")
        assert findings(page) == {}
        page.goto(url)
        page.wait_for_selector("#albums a")
        assert findings(page) == {}
